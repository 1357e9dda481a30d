"""Recurrent cells whose products are convolutions."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.activations import Sigmoid, Tanh, activation_of
from orca.backends.bigdl.cells import Cell, State
from orca.backends.bigdl.convolution import SpatialConvolution
from orca.backends.bigdl.convolution_sequences import VolumetricConvolution
from orca.backends.bigdl.dimensions import need_dims, need_size
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import CMul
from orca.core.arguments import check_count, check_flag

_ORDER = ("forget", "input", "candidate", "output")
"""The order of the weights; they are drawn in the order input, forget, candidate, output."""


class _ConvLSTM(Cell):
    states = 2
    spatial: int

    def _build(self, inputs: int, outputs: int, regularizers: tuple[Any, Any, Any, Any], with_peephole: bool) -> None:
        self.input_size = check_count("input_size", inputs)
        self.hidden_size = check_count("output_size", outputs)
        w, u, b, c = regularizers
        self.peephole = check_flag("with_peephole", with_peephole)
        parts: dict[str, dict[str, Layer]] = {}
        for gate in ("input", "forget", "candidate", "output"):
            parts[gate] = {"i2g": self._convolution(inputs, self.kernels[0], True, w, b)}
            parts[gate]["h2g"] = self._convolution(outputs, self.kernels[1], False, u, None)
            if self.peephole and gate != "candidate":
                parts[gate]["c2g"] = CMul([1, outputs] + [1] * self.spatial, c)
        self.parts = {
            gate: {key: self.attach(f"{gate}_{key}", layer) for key, layer in parts[gate].items()} for gate in _ORDER
        }

    kernels: tuple[int, int]

    def _convolution(self, inputs: int, kernel: int, with_bias: bool, w: Any, b: Any) -> Layer:
        raise NotImplementedError

    def check_sequence(self, x: torch.Tensor) -> None:
        """Raise if this is not a sequence for the cell."""
        need_dims(self, x, self.spatial + 3)
        need_size(self, x, 2, self.input_size, "channels")

    def first_state(self, x: torch.Tensor) -> State:
        """Return zeros in the shape of the images."""
        shape = (x.shape[0], self.hidden_size, *x.shape[-self.spatial :])
        return [x.new_zeros(shape) for _ in range(2)]

    def prepare(self, x: torch.Tensor) -> Any:
        flat = x.flatten(0, 1)
        products = [self.parts[gate]["i2g"].module(flat).unflatten(0, x.shape[:2]).unbind(1) for gate in _ORDER]
        return zip(*products, strict=True)

    def step(self, z: Any, state: State) -> tuple[torch.Tensor, State]:
        h, c = state
        forget, put, new, out = z
        inner, outer = self._functions()
        candidate = outer(new + self.parts["candidate"]["h2g"].module(h))
        cell = inner(self._gate("forget", forget, h, c)) * c + inner(self._gate("input", put, h, c)) * candidate
        hidden = inner(self._gate("output", out, h, cell)) * outer(cell)
        return hidden, [hidden, cell]

    def _gate(self, gate: str, z: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        total = z + self.parts[gate]["h2g"].module(h)
        return total + self.parts[gate]["c2g"].module(c) if self.peephole else total

    def _functions(self) -> tuple[Any, Any]:
        return torch.sigmoid, torch.tanh


class ConvLSTMPeephole(_ConvLSTM):
    """A convolutional LSTM over sequences of images (batch, time, channels, height, width).

    Args:
        input_size: The number of input channels.
        output_size: The number of output channels.
        kernel_i: The kernel over the input.
        kernel_c: The kernel over the state.
        stride: The step of the convolutions.
        padding: Their padding; -1 for TensorFlow's "SAME".
        activation: The activation of candidate and output, a layer or its name; Tanh by default.
        inner_activation: The activation of the gates; Sigmoid by default.
        wRegularizer: The regularizer of the weights of inputs.
        uRegularizer: The regularizer of the weights of the state.
        bRegularizer: The regularizer of the biases.
        cRegularizer: The regularizer of the peepholes.
        with_peephole: Whether the gates see the state of the cell.
    """

    spatial = 2

    def __init__(
        self,
        input_size: int,
        output_size: int,
        kernel_i: int,
        kernel_c: int,
        stride: int = 1,
        padding: int = -1,
        activation: Any = None,
        inner_activation: Any = None,
        wRegularizer: Any = None,
        uRegularizer: Any = None,
        bRegularizer: Any = None,
        cRegularizer: Any = None,
        with_peephole: bool = True,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.kernels, self.stride, self.padding = (kernel_i, kernel_c), stride, padding
        regularizers = (wRegularizer, uRegularizer, bRegularizer, cRegularizer)
        self._build(input_size, output_size, regularizers, with_peephole)
        self.activation: Layer = self.attach("activation", activation_of(activation or Tanh()))
        self.inner: Layer = self.attach("inner", activation_of(inner_activation or Sigmoid(), "inner_activation"))

    def _convolution(self, inputs: int, kernel: int, with_bias: bool, w: Any, b: Any) -> Layer:
        step, pad = self.stride, self.padding
        return SpatialConvolution(
            inputs,
            self.hidden_size,
            kernel,
            kernel,
            step,
            step,
            pad,
            pad,
            wRegularizer=w,
            bRegularizer=b,
            with_bias=with_bias,
        )

    def _functions(self) -> tuple[Any, Any]:
        return self.inner.module, self.activation.module


class ConvLSTMPeephole3D(_ConvLSTM):
    """A convolutional LSTM over sequences of volumes (batch, time, channels, depth, height, width).

    Args:
        input_size: The number of input channels.
        output_size: The number of output channels.
        kernel_i: The kernel over the input.
        kernel_c: The kernel over the state.
        stride: The step of the convolutions.
        padding: Their padding; -1 for TensorFlow's "SAME".
        wRegularizer: The regularizer of the weights of inputs.
        uRegularizer: The regularizer of the weights of the state.
        bRegularizer: The regularizer of the biases.
        cRegularizer: The regularizer of the peepholes.
        with_peephole: Whether the gates see the state of the cell.
    """

    spatial = 3

    def __init__(
        self,
        input_size: int,
        output_size: int,
        kernel_i: int,
        kernel_c: int,
        stride: int = 1,
        padding: int = -1,
        wRegularizer: Any = None,
        uRegularizer: Any = None,
        bRegularizer: Any = None,
        cRegularizer: Any = None,
        with_peephole: bool = True,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.kernels, self.stride, self.padding = (kernel_i, kernel_c), stride, padding
        regularizers = (wRegularizer, uRegularizer, bRegularizer, cRegularizer)
        self._build(input_size, output_size, regularizers, with_peephole)

    def _convolution(self, inputs: int, kernel: int, with_bias: bool, w: Any, b: Any) -> Layer:
        k, d, p = (kernel,) * 3, (self.stride,) * 3, (self.padding,) * 3
        return VolumetricConvolution(inputs, self.hidden_size, *k, *d, *p, with_bias, w, b)
