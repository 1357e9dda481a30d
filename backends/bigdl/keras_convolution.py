"""Convolutions in the style of Keras 1, which has heights before widths."""

from __future__ import annotations

from typing import Any

from orca.backends.bigdl.container import Sequential
from orca.backends.bigdl.convolution import (
    SpatialConvolution,
    SpatialDilatedConvolution,
    SpatialSeparableConvolution,
)
from orca.backends.bigdl.convolution_full import SpatialFullConvolution
from orca.backends.bigdl.convolution_sequences import VolumetricConvolution
from orca.backends.bigdl.initialization import Zeros
from orca.backends.bigdl.keras_layer import KerasLayer, Shape, channels_last, initial, same
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.local import LocallyConnected1D as BigDLLocal1D
from orca.backends.bigdl.local import LocallyConnected2D as BigDLLocal2D
from orca.backends.bigdl.shape import Squeeze, Unsqueeze
from orca.core.arguments import check_count, check_flag
from orca.errors import ArgumentError


def pair(name: str, value: Any, count: int = 2) -> tuple[int, ...]:
    """Return some integers that a user wrote as a tuple or as one integer."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,) * count
    if len(values) != count:
        raise ArgumentError(f"{name}={value}: expected {count} integers.")
    return tuple(check_count(name, item) for item in values)


class _Convolution(KerasLayer):
    """What all convolutions have."""

    def _set(self, nb_filter: int, init: Any, activation: Any, border_mode: str, regularizers: Any, bias: bool) -> None:
        self.filters = check_count("nb_filter", nb_filter)
        self.init, self.activation = initial(init), activation
        self.same = same(border_mode)
        self.regularizers_of = regularizers
        self.bias = check_flag("bias", bias)

    @property
    def pad(self) -> int:
        """The padding of BigDL: -1 for "same"."""
        return -1 if self.same else 0


class Convolution1D(_Convolution):
    """A convolution over sequences (time, size).

    Args:
        nb_filter: The number of outputs per time step.
        filter_length: The number of time steps of the kernel.
        init: The initialization method of the weight, or its name.
        activation: The activation, a layer or its name.
        border_mode: "valid" or "same".
        subsample_length: The step in time.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, filter_length: int, init: Any = "glorot_uniform", activation: Any = None,
        border_mode: str = "valid", subsample_length: int = 1, W_regularizer: Any = None, b_regularizer: Any = None,
        bias: bool = True, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self._set(nb_filter, init, activation, border_mode, (W_regularizer, b_regularizer), bias)
        self.length = check_count("filter_length", filter_length)
        self.step = check_count("subsample_length", subsample_length)

    def make(self, shape: Shape) -> Layer:
        convolution = SpatialConvolution(
            shape[1], self.filters, 1, self.length, 1, self.step, self.pad, self.pad,
            wRegularizer=self.regularizers_of[0], bRegularizer=self.regularizers_of[1], with_bias=self.bias,
            data_format="NHWC",
        )  # fmt: skip
        convolution.set_init_method(self.init, Zeros())
        return Sequential().add(Unsqueeze(3)).add(convolution).add(Squeeze(3))


class Convolution2D(_Convolution):
    """A convolution over images.

    Args:
        nb_filter: The number of output channels.
        nb_row: The height of the kernel.
        nb_col: Its width.
        init: The initialization method of the weight, or its name.
        activation: The activation, a layer or its name.
        border_mode: "valid" or "same".
        subsample: The steps in height and width.
        dim_ordering: "th" for channels first, "tf" for channels last.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, nb_row: int, nb_col: int, init: Any = "glorot_uniform", activation: Any = None,
        border_mode: str = "valid", subsample: Any = (1, 1), dim_ordering: str = "th", W_regularizer: Any = None,
        b_regularizer: Any = None, bias: bool = True, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self._set(nb_filter, init, activation, border_mode, (W_regularizer, b_regularizer), bias)
        self.kernel = (check_count("nb_row", nb_row), check_count("nb_col", nb_col))
        self.step, self.last = pair("subsample", subsample), channels_last(dim_ordering)

    def make(self, shape: Shape) -> Layer:
        height, width = self.kernel
        return SpatialConvolution(
            shape[2] if self.last else shape[0], self.filters, width, height, self.step[1], self.step[0], self.pad,
            self.pad, wRegularizer=self.regularizers_of[0], bRegularizer=self.regularizers_of[1], with_bias=self.bias,
            data_format="NHWC" if self.last else "NCHW",
        ).set_init_method(self.init, Zeros())  # fmt: skip


class Convolution3D(_Convolution):
    """A convolution over volumes with the channels first.

    Args:
        nb_filter: The number of output channels.
        kernel_dim1: The kernel in the first dimension.
        kernel_dim2: The kernel in the second dimension.
        kernel_dim3: The kernel in the third dimension.
        init: The initialization method of the weight, or its name.
        activation: The activation, a layer or its name.
        border_mode: "valid" or "same".
        subsample: The steps in the three dimensions.
        dim_ordering: "th".
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, kernel_dim1: int, kernel_dim2: int, kernel_dim3: int, init: Any = "glorot_uniform",
        activation: Any = None, border_mode: str = "valid", subsample: Any = (1, 1, 1), dim_ordering: str = "th",
        W_regularizer: Any = None, b_regularizer: Any = None, bias: bool = True, input_shape: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self._set(nb_filter, init, activation, border_mode, (W_regularizer, b_regularizer), bias)
        self.kernel = pair("kernel_dim", (kernel_dim1, kernel_dim2, kernel_dim3), 3)
        self.step = pair("subsample", subsample, 3)
        if channels_last(dim_ordering):
            raise ArgumentError('Convolution3D supports dim_ordering="th" only.')

    def make(self, shape: Shape) -> Layer:
        (k1, k2, k3), (d1, d2, d3) = self.kernel, self.step
        pads = (self.pad,) * 3
        layer = VolumetricConvolution(
            shape[0], self.filters, k1, k3, k2, d1, d3, d2, *pads, self.bias, *self.regularizers_of
        )
        return layer.set_init_method(self.init, Zeros())


class AtrousConvolution2D(_Convolution):
    """A convolution over images whose kernel skips pixels, with the channels first.

    Args:
        nb_filter: The number of output channels.
        nb_row: The height of the kernel.
        nb_col: Its width.
        init: The initialization method of the weight, or its name.
        activation: The activation, a layer or its name.
        subsample: The steps in height and width.
        atrous_rate: The distances of the kernel's pixels in height and width.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, nb_row: int, nb_col: int, init: Any = "glorot_uniform", activation: Any = None,
        subsample: Any = (1, 1), atrous_rate: Any = (1, 1), W_regularizer: Any = None, b_regularizer: Any = None,
        input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self._set(nb_filter, init, activation, "valid", (W_regularizer, b_regularizer), True)
        self.kernel = (check_count("nb_row", nb_row), check_count("nb_col", nb_col))
        self.step, self.rate = pair("subsample", subsample), pair("atrous_rate", atrous_rate)

    def make(self, shape: Shape) -> Layer:
        (height, width), (dh, dw), (rh, rw) = self.kernel, self.step, self.rate
        layer = SpatialDilatedConvolution(
            shape[0], self.filters, width, height, dw, dh, 0, 0, rw, rh, *self.regularizers_of
        )
        return layer.set_init_method(self.init, Zeros())


class Deconvolution2D(_Convolution):
    """A transposed convolution over images with the channels first.

    Args:
        nb_filter: The number of output channels.
        nb_row: The height of the kernel.
        nb_col: Its width.
        init: The initialization method of the weight, or its name.
        activation: The activation, a layer or its name.
        subsample: The steps in height and width.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, nb_row: int, nb_col: int, init: Any = "glorot_uniform", activation: Any = None,
        subsample: Any = (1, 1), W_regularizer: Any = None, b_regularizer: Any = None, bias: bool = True,
        input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self._set(nb_filter, init, activation, "valid", (W_regularizer, b_regularizer), bias)
        self.kernel = (check_count("nb_row", nb_row), check_count("nb_col", nb_col))
        self.step = pair("subsample", subsample)

    def make(self, shape: Shape) -> Layer:
        (height, width), (dh, dw) = self.kernel, self.step
        layer = SpatialFullConvolution(
            shape[0], self.filters, width, height, dw, dh, no_bias=not self.bias,
            wRegularizer=self.regularizers_of[0], bRegularizer=self.regularizers_of[1],
        )  # fmt: skip
        return layer.set_init_method(self.init, Zeros())


class SeparableConvolution2D(_Convolution):
    """A convolution of each channel for itself, then one that mixes the channels.

    Args:
        nb_filter: The number of output channels.
        nb_row: The height of the kernel.
        nb_col: Its width.
        init: The initialization method of the weights, or its name.
        activation: The activation, a layer or its name.
        border_mode: "valid" or "same".
        subsample: The steps in height and width.
        depth_multiplier: How many channels the first convolution makes of each.
        dim_ordering: "th" for channels first, "tf" for channels last.
        depthwise_regularizer: The regularizer of the first weight.
        pointwise_regularizer: The regularizer of the second weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, nb_row: int, nb_col: int, init: Any = "glorot_uniform", activation: Any = None,
        border_mode: str = "valid", subsample: Any = (1, 1), depth_multiplier: int = 1, dim_ordering: str = "th",
        depthwise_regularizer: Any = None, pointwise_regularizer: Any = None, b_regularizer: Any = None,
        bias: bool = True, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        regularizers = (depthwise_regularizer, b_regularizer, pointwise_regularizer)
        self._set(nb_filter, init, activation, border_mode, regularizers, bias)
        self.kernel = (check_count("nb_row", nb_row), check_count("nb_col", nb_col))
        self.step, self.last = pair("subsample", subsample), channels_last(dim_ordering)
        self.multiplier = check_count("depth_multiplier", depth_multiplier)

    def make(self, shape: Shape) -> Layer:
        (height, width), (dh, dw) = self.kernel, self.step
        return SpatialSeparableConvolution(
            shape[2] if self.last else shape[0], self.filters, self.multiplier, width, height, dw, dh, self.pad,
            self.pad, self.bias, "NHWC" if self.last else "NCHW", *self.regularizers_of,
        )  # fmt: skip


class LocallyConnected1D(_Convolution):
    """A convolution over sequences (time, size) with weights of its own at every time step.

    Args:
        nb_filter: The number of outputs per time step.
        filter_length: The number of time steps of the kernel.
        activation: The activation, a layer or its name.
        subsample_length: The step in time.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, filter_length: int, activation: Any = None, subsample_length: int = 1,
        W_regularizer: Any = None, b_regularizer: Any = None, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self._set(nb_filter, "uniform", activation, "valid", (W_regularizer, b_regularizer), True)
        self.length = check_count("filter_length", filter_length)
        self.step = check_count("subsample_length", subsample_length)

    def make(self, shape: Shape) -> Layer:
        return BigDLLocal1D(shape[0], shape[1], self.filters, self.length, self.step, True, *self.regularizers_of)


class LocallyConnected2D(_Convolution):
    """A convolution over images with weights of its own at every place.

    Args:
        nb_filter: The number of output channels.
        nb_row: The height of the kernel.
        nb_col: Its width.
        activation: The activation, a layer or its name.
        border_mode: "valid" or "same".
        subsample: The steps in height and width.
        dim_ordering: "th" for channels first, "tf" for channels last.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, nb_filter: int, nb_row: int, nb_col: int, activation: Any = None, border_mode: str = "valid",
        subsample: Any = (1, 1), dim_ordering: str = "th", W_regularizer: Any = None, b_regularizer: Any = None,
        bias: bool = True, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self._set(nb_filter, "uniform", activation, border_mode, (W_regularizer, b_regularizer), bias)
        self.kernel = (check_count("nb_row", nb_row), check_count("nb_col", nb_col))
        self.step, self.last = pair("subsample", subsample), channels_last(dim_ordering)

    def make(self, shape: Shape) -> Layer:
        height, width, channels = shape if self.last else (shape[1], shape[2], shape[0])
        return BigDLLocal2D(
            channels, width, height, self.filters, self.kernel[1], self.kernel[0], self.step[1], self.step[0], self.pad,
            self.pad, wRegularizer=self.regularizers_of[0], bRegularizer=self.regularizers_of[1], with_bias=self.bias,
            data_format="NHWC" if self.last else "NCHW",
        )  # fmt: skip
