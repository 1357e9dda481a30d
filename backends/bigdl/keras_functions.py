"""Layers of BigDL that Keras does not have, in the style of Keras 1: dimensions count from 0, the batch included."""

from __future__ import annotations

from typing import Any

from orca.backends.bigdl import activations, maths, normalization, scaling, shape, shape_images
from orca.backends.bigdl.keras_layer import KerasLayer, Shape, channels_last
from orca.backends.bigdl.layer import Layer
from orca.errors import ArgumentError


class _Wrapped(KerasLayer):
    """A layer of BigDL that takes no other arguments than its own."""

    kind: type[Layer]

    def __init__(self, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)

    def make(self, shape: Shape) -> Layer:
        return self.kind()


def _dimension(value: int, name: str = "dim") -> int:
    if value == 0:
        raise ArgumentError(f"{name}=0 is the batch, which cannot be changed.")
    return value + 1 if value > 0 else value


class Select(KerasLayer):
    """Takes one index of a dimension.

    Args:
        dim: The dimension; 0 is the batch.
        index: The index, counted from 0; negative from the end.
    """

    def __init__(self, dim: int, index: int, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.dim, self.index = _dimension(dim), index + 1 if index >= 0 else index

    def make(self, row: Shape) -> Layer:
        return shape.Select(self.dim, self.index)


class Narrow(KerasLayer):
    """Takes a range of a dimension.

    Args:
        dim: The dimension; 0 is the batch.
        offset: The first index, counted from 0.
        length: The number of indices; -1 for all that follow.
    """

    def __init__(
        self, dim: int, offset: int, length: int = 1, input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.dim, self.offset, self.length = _dimension(dim), offset + 1 if offset >= 0 else offset, length

    def make(self, row: Shape) -> Layer:
        return shape.Narrow(self.dim, self.offset, self.length)


class Squeeze(KerasLayer):
    """Drops dimensions of size one.

    Args:
        dim: The dimension, or several; None for all but the batch.
    """

    def __init__(self, dim: Any = None, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.dims = None if dim is None else [_dimension(item) for item in shape.integers("dim", dim)]

    def make(self, row: Shape) -> Layer:
        return shape.Squeeze(None, 0) if self.dims is None else shape.Squeeze(self.dims)


class ExpandDim(KerasLayer):
    """Inserts a dimension of size one.

    Args:
        dim: Its position; 0 is the batch.
    """

    def __init__(self, dim: int, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.dim = _dimension(dim)

    def make(self, row: Shape) -> Layer:
        return shape.Unsqueeze(self.dim)


class CAdd(KerasLayer):
    """Adds a learned tensor, repeated along its dimensions of one.

    Args:
        size: The shape of the tensor.
        b_regularizer: Its regularizer.
    """

    def __init__(self, size: Any, b_regularizer: Any = None, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.size, self.regularizer = scaling.shape_of("size", size), b_regularizer

    def make(self, row: Shape) -> Layer:
        return scaling.CAdd(list(self.size), self.regularizer)


class CMul(KerasLayer):
    """Multiplies by a learned tensor, repeated along its dimensions of one.

    Args:
        size: The shape of the tensor.
        W_regularizer: Its regularizer.
    """

    def __init__(self, size: Any, W_regularizer: Any = None, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.size, self.regularizer = scaling.shape_of("size", size), W_regularizer

    def make(self, row: Shape) -> Layer:
        return scaling.CMul(list(self.size), self.regularizer)


class Scale(KerasLayer):
    """Multiplies by a learned tensor and adds another.

    Args:
        size: The shape of both tensors.
    """

    def __init__(self, size: Any, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.size = scaling.shape_of("size", size)

    def make(self, row: Shape) -> Layer:
        return scaling.Scale(list(self.size))


class AddConstant(KerasLayer):
    """Adds a constant.

    Args:
        constant: The constant.
    """

    def __init__(self, constant: float, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.constant = constant

    def make(self, row: Shape) -> Layer:
        return maths.AddConstant(self.constant)


class MulConstant(KerasLayer):
    """Multiplies by a constant.

    Args:
        constant: The constant.
    """

    def __init__(self, constant: float, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.constant = constant

    def make(self, row: Shape) -> Layer:
        return maths.MulConstant(self.constant)


class Power(KerasLayer):
    """Computes (shift + scale * x) ** power.

    Args:
        power: The exponent.
        scale: The factor.
        shift: The summand.
    """

    def __init__(
        self, power: float, scale: float = 1.0, shift: float = 0.0, input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.settings = (power, scale, shift)

    def make(self, row: Shape) -> Layer:
        return maths.Power(*self.settings)


class Exp(_Wrapped):
    """Computes the exponential."""

    kind = maths.Exp


class Log(_Wrapped):
    """Computes the natural logarithm."""

    kind = maths.Log


class Sqrt(_Wrapped):
    """Computes the square root."""

    kind = maths.Sqrt


class Square(_Wrapped):
    """Computes the square."""

    kind = maths.Square


class Negative(_Wrapped):
    """Computes -x."""

    kind = maths.Negative


class Identity(_Wrapped):
    """Returns the input."""

    kind = activations.Identity


class Mul(_Wrapped):
    """Multiplies by one learned number."""

    kind = scaling.Mul


class SoftMax(_Wrapped):
    """Computes the softmax over the last dimension; for images over the channels."""

    kind = activations.SoftMax


class HardTanh(KerasLayer):
    """Clips values.

    Args:
        min_value: The smallest output.
        max_value: The largest output.
    """

    def __init__(
        self, min_value: float = -1.0, max_value: float = 1.0, input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.bounds = (min_value, max_value)

    def make(self, row: Shape) -> Layer:
        return activations.HardTanh(*self.bounds)


class LRN2D(KerasLayer):
    """Divides each value by the local energy across channels.

    Args:
        alpha: The factor of the sum.
        k: The summand.
        beta: The exponent.
        n: The number of channels to sum over.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    def __init__(
        self, alpha: float = 1e-4, k: float = 1.0, beta: float = 0.75, n: int = 5, dim_ordering: str = "th",
        input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.settings, self.last = (n, alpha, beta, k), channels_last(dim_ordering)

    def make(self, row: Shape) -> Layer:
        return normalization.SpatialCrossMapLRN(*self.settings, data_format="NHWC" if self.last else "NCHW")


class ResizeBilinear(KerasLayer):
    """Resizes images by linear interpolation.

    Args:
        output_height: The height of the output.
        output_width: The width of the output.
        align_corner: Whether the corner pixels of input and output coincide.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    def __init__(
        self, output_height: int, output_width: int, align_corner: bool = False, dim_ordering: str = "th",
        input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.settings = (output_height, output_width, align_corner)
        self.last = channels_last(dim_ordering)

    def make(self, row: Shape) -> Layer:
        return shape_images.ResizeBilinear(*self.settings, "NHWC" if self.last else "NCHW")
