"""Recurrent layers and wrappers in the style of Keras 1."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import torch

from orca.backends.bigdl import cells
from orca.backends.bigdl.activations import activation_of
from orca.backends.bigdl.conv_cells import ConvLSTMPeephole, ConvLSTMPeephole3D
from orca.backends.bigdl.keras_layer import KerasLayer, Shape, channels_last
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.recurrent import Recurrent
from orca.core.arguments import check_choice, check_count, check_flag, shown
from orca.errors import ArgumentError


class RecurrentLayer(KerasLayer):
    """A recurrent layer over sequences."""

    return_sequences = False
    go_backwards = False

    def cell(self, shape: Shape) -> cells.Cell:
        """Return the cell for the shape of a sequence."""
        raise NotImplementedError

    def make(self, shape: Shape) -> Layer:
        return Recurrent().add(self.cell(shape))

    def compute(self, x: Any) -> torch.Tensor:
        outputs = super().compute(x.flip(1) if self.go_backwards else x)
        return outputs if self.return_sequences else outputs[:, -1]


class _Simple(RecurrentLayer):
    def _set(
        self, output_dim: int, activation: Any, return_sequences: bool, go_backwards: bool, regularizers: Any
    ) -> None:
        self.output_dim = check_count("output_dim", output_dim)
        activation_of(activation)
        self.function = activation
        self.return_sequences = check_flag("return_sequences", return_sequences)
        self.go_backwards = check_flag("go_backwards", go_backwards)
        self.regularizers_of = regularizers


class SimpleRNN(_Simple):
    """A simple recurrent layer.

    Args:
        output_dim: The size of the output.
        activation: The activation, a layer or its name.
        return_sequences: Whether all time steps are returned, or the last one.
        go_backwards: Whether sequences are read from the end.
        W_regularizer: The regularizer of the weights of inputs.
        U_regularizer: The regularizer of the weights of the state.
        b_regularizer: The regularizer of the bias.
        input_shape: The shape of a sequence, for the first layer of a model.
    """

    def __init__(
        self, output_dim: int, activation: Any = "tanh", return_sequences: bool = False, go_backwards: bool = False,
        W_regularizer: Any = None, U_regularizer: Any = None, b_regularizer: Any = None, input_shape: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        regularizers = (W_regularizer, U_regularizer, b_regularizer)
        self._set(output_dim, activation, return_sequences, go_backwards, regularizers)

    def cell(self, shape: Shape) -> cells.Cell:
        return cells.RnnCell(shape[1], self.output_dim, self.function, False, True, *self.regularizers_of)


class LSTM(_Simple):
    """A long short-term memory.

    Args:
        output_dim: The size of the output.
        activation: The activation of candidate and output, a layer or its name.
        inner_activation: The activation of the gates.
        return_sequences: Whether all time steps are returned, or the last one.
        go_backwards: Whether sequences are read from the end.
        W_regularizer: The regularizer of the weights of inputs.
        U_regularizer: The regularizer of the weights of the state.
        b_regularizer: The regularizer of the bias.
        input_shape: The shape of a sequence, for the first layer of a model.
    """

    kind: Any = cells.LSTM

    def __init__(
        self, output_dim: int, activation: Any = "tanh", inner_activation: Any = "hard_sigmoid",
        return_sequences: bool = False, go_backwards: bool = False, W_regularizer: Any = None,
        U_regularizer: Any = None, b_regularizer: Any = None, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        regularizers = (W_regularizer, U_regularizer, b_regularizer)
        self._set(output_dim, activation, return_sequences, go_backwards, regularizers)
        activation_of(inner_activation, "inner_activation")
        self.inner = inner_activation

    def cell(self, shape: Shape) -> cells.Cell:
        cell: cells.Cell = self.kind(shape[1], self.output_dim, 0.0, self.function, self.inner, *self.regularizers_of)
        return cell


class GRU(LSTM):
    """A gated recurrent unit, with the arguments of `LSTM`."""

    kind = cells.GRU


class _ConvLSTM(RecurrentLayer):
    def _set(
        self, nb_filter: int, dim_ordering: str, border_mode: str, flags: tuple[bool, bool], regularizers: Any
    ) -> None:
        self.filters = check_count("nb_filter", nb_filter)
        if channels_last(dim_ordering):
            raise ArgumentError(f'{type(self).__name__} supports dim_ordering="th" only.')
        check_choice("border_mode", border_mode, ("same",))
        self.return_sequences = check_flag("return_sequences", flags[0])
        self.go_backwards = check_flag("go_backwards", flags[1])
        self.regularizers_of = regularizers


class ConvLSTM2D(_ConvLSTM):
    """A convolutional LSTM over sequences of images (time, channels, height, width).

    Args:
        nb_filter: The number of output channels.
        nb_kernel: The side of the square kernels.
        activation: The activation of candidate and output, a layer or its name.
        inner_activation: The activation of the gates.
        dim_ordering: "th".
        border_mode: "same".
        subsample: The step of the convolutions.
        W_regularizer: The regularizer of the weights of inputs.
        U_regularizer: The regularizer of the weights of the state.
        b_regularizer: The regularizer of the biases.
        return_sequences: Whether all time steps are returned, or the last one.
        go_backwards: Whether sequences are read from the end.
        input_shape: The shape of a sequence, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, nb_kernel: int, activation: Any = "tanh", inner_activation: Any = "hard_sigmoid",
        dim_ordering: str = "th", border_mode: str = "same", subsample: int = 1, W_regularizer: Any = None,
        U_regularizer: Any = None, b_regularizer: Any = None, return_sequences: bool = False,
        go_backwards: bool = False, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        regularizers = (W_regularizer, U_regularizer, b_regularizer)
        self._set(nb_filter, dim_ordering, border_mode, (return_sequences, go_backwards), regularizers)
        self.kernel, self.step = check_count("nb_kernel", nb_kernel), check_count("subsample", subsample)
        self.function, self.inner = activation, inner_activation

    def cell(self, shape: Shape) -> cells.Cell:
        w, u, b = self.regularizers_of
        return ConvLSTMPeephole(
            shape[1], self.filters, self.kernel, self.kernel, self.step, -1, activation_of(self.function),
            activation_of(self.inner), w, u, b, None, False,
        )  # fmt: skip


class ConvLSTM3D(_ConvLSTM):
    """A convolutional LSTM over sequences of volumes (time, channels, depth, height, width).

    Args:
        nb_filter: The number of output channels.
        nb_kernel: The side of the cubic kernels.
        dim_ordering: "th".
        border_mode: "same".
        subsample: The step of the convolutions.
        W_regularizer: The regularizer of the weights of inputs.
        U_regularizer: The regularizer of the weights of the state.
        b_regularizer: The regularizer of the biases.
        return_sequences: Whether all time steps are returned, or the last one.
        go_backwards: Whether sequences are read from the end.
        input_shape: The shape of a sequence, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, nb_kernel: int, dim_ordering: str = "th", border_mode: str = "same", subsample: int = 1,
        W_regularizer: Any = None, U_regularizer: Any = None, b_regularizer: Any = None,
        return_sequences: bool = False, go_backwards: bool = False, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        regularizers = (W_regularizer, U_regularizer, b_regularizer)
        self._set(nb_filter, dim_ordering, border_mode, (return_sequences, go_backwards), regularizers)
        self.kernel, self.step = check_count("nb_kernel", nb_kernel), check_count("subsample", subsample)

    def cell(self, shape: Shape) -> cells.Cell:
        settings = (shape[1], self.filters, self.kernel, self.kernel, self.step, -1)
        w, u, b = self.regularizers_of
        return ConvLSTMPeephole3D(*settings, w, u, b, None, False)


class TimeDistributed(KerasLayer):
    """Runs a layer on every time step.

    Args:
        layer: The layer.
        input_shape: The shape of a sequence, for the first layer of a model.
    """

    def __init__(self, layer: KerasLayer, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        if not isinstance(layer, KerasLayer):
            raise ArgumentError(f"layer={shown(layer)}: expected a layer in the style of Keras.")
        self.inner = layer

    def make(self, shape: Shape) -> Layer:
        self.inner.build(shape[1:])
        return self.inner

    def compute(self, x: Any) -> Any:
        if self.labor is None:
            self.build(tuple(x.shape[1:]))
        return self.inner.module(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Bidirectional(KerasLayer):
    """Runs a recurrent layer over sequences and a copy of it over the reversed sequences.

    Args:
        layer: The recurrent layer.
        merge_mode: How both outputs are merged: "sum", "mul", "ave" or "concat".
        input_shape: The shape of a sequence, for the first layer of a model.
    """

    def __init__(
        self, layer: RecurrentLayer, merge_mode: str = "concat", input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        if not isinstance(layer, RecurrentLayer):
            raise ArgumentError(f"layer={shown(layer)}: expected a recurrent layer, such as LSTM(3).")
        if self.input_shape is None:
            self.input_shape = layer.input_shape
        self.forth = layer
        self.mode = check_choice("merge_mode", merge_mode, ("sum", "mul", "ave", "concat"))

    def make(self, shape: Shape) -> Layer:
        self.forth.build(shape)
        self.back = copy.deepcopy(self.forth)
        for layer in self.back.walk():
            layer.set_name(f"{type(layer).__name__}{uuid.uuid4().hex[:8]}")
        self.back.go_backwards = not self.forth.go_backwards
        self.attach("back", self.back)
        return self.forth

    def weight_parameters(self) -> list[Any]:
        """Return the parameters of the layer, then those of its copy."""
        if self.labor is None:
            return []
        return [*self.forth.weight_parameters(), *self.back.weight_parameters()]

    def compute(self, x: Any) -> torch.Tensor:
        if self.labor is None:
            self.build(tuple(x.shape[1:]))
        first, second = self.forth.module(x), self.back.module(x)
        if self.forth.return_sequences:
            second = second.flip(1)
        if self.mode == "concat":
            return torch.cat([first, second], dim=2 if self.forth.return_sequences else 1)
        merged: torch.Tensor = first * second if self.mode == "mul" else first + second
        return merged / 2 if self.mode == "ave" else merged
