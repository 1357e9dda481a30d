"""Pooling, padding, cropping and repetition in the style of Keras 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl import pooling
from orca.backends.bigdl.container import Sequential
from orca.backends.bigdl.keras_convolution import pair
from orca.backends.bigdl.keras_layer import KerasLayer, Shape, channels_last, same
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.shape import Squeeze, Unsqueeze
from orca.core.arguments import check_count
from orca.errors import ArgumentError


class MaxPooling1D(KerasLayer):
    """Takes the maximum over windows of sequences (time, size).

    Args:
        pool_length: The number of time steps of the window.
        stride: The step in time; the window itself by default.
        border_mode: "valid" or "same".
    """

    average = False

    def __init__(
        self, pool_length: int = 2, stride: int | None = None, border_mode: str = "valid", input_shape: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.length = check_count("pool_length", pool_length)
        self.step = self.length if stride is None else check_count("stride", stride)
        self.pad = -1 if same(border_mode) else 0

    def make(self, shape: Shape) -> Layer:
        settings = (1, self.length, 1, self.step, self.pad, self.pad)
        layer: Layer
        if self.average:
            layer = pooling.SpatialAveragePooling(*settings, count_include_pad=False, format="NHWC")
        else:
            layer = pooling.SpatialMaxPooling(*settings, format="NHWC")
        return Sequential().add(Unsqueeze(3)).add(layer).add(Squeeze(3))


class AveragePooling1D(MaxPooling1D):
    """Averages over windows of sequences (time, size)."""

    average = True


class MaxPooling2D(KerasLayer):
    """Takes the maximum over windows of images.

    Args:
        pool_size: The height and the width of the window.
        strides: The steps in height and width; the window itself by default.
        border_mode: "valid" or "same".
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    average = False

    def __init__(
        self, pool_size: Any = (2, 2), strides: Any = None, border_mode: str = "valid", dim_ordering: str = "th",
        input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.size = pair("pool_size", pool_size)
        self.step = self.size if strides is None else pair("strides", strides)
        self.pad, self.last = -1 if same(border_mode) else 0, channels_last(dim_ordering)

    def make(self, shape: Shape) -> Layer:
        settings = (self.size[1], self.size[0], self.step[1], self.step[0], self.pad, self.pad)
        form = "NHWC" if self.last else "NCHW"
        if self.average:
            return pooling.SpatialAveragePooling(*settings, count_include_pad=False, format=form)
        return pooling.SpatialMaxPooling(*settings, format=form)


class AveragePooling2D(MaxPooling2D):
    """Averages over windows of images."""

    average = True


class MaxPooling3D(KerasLayer):
    """Takes the maximum over windows of volumes with the channels first.

    Args:
        pool_size: The three sizes of the window.
        strides: The three steps; the window itself by default.
    """

    average = False

    def __init__(
        self, pool_size: Any = (2, 2, 2), strides: Any = None, input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.size = pair("pool_size", pool_size, 3)
        self.step = self.size if strides is None else pair("strides", strides, 3)

    def make(self, shape: Shape) -> Layer:
        (k1, k2, k3), (d1, d2, d3) = self.size, self.step
        kind: Any = pooling.VolumetricAveragePooling if self.average else pooling.VolumetricMaxPooling
        layer: Layer = kind(k1, k3, k2, d1, d3, d2)
        return layer


class AveragePooling3D(MaxPooling3D):
    """Averages over windows of volumes with the channels first."""

    average = True


class _Plain(KerasLayer):
    """A layer without weights that computes by itself."""

    def make(self, shape: Shape) -> Layer:
        return Sequential()

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        raise NotImplementedError

    def compute(self, x: Any) -> Any:
        return self.result(x)


class _Global(_Plain):
    """Reduces all places of each channel."""

    mean = False

    def __init__(self, dim_ordering: str = "th", input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.last = channels_last(dim_ordering)

    def result(self, x: torch.Tensor) -> torch.Tensor:
        places = tuple(range(1, x.ndim - 1)) if self.last else tuple(range(2, x.ndim))
        return x.mean(dim=places) if self.mean else x.amax(dim=places)


class GlobalMaxPooling2D(_Global):
    """Takes the maximum of each channel of images."""


class GlobalMaxPooling3D(_Global):
    """Takes the maximum of each channel of volumes."""


class GlobalAveragePooling2D(_Global):
    """Averages each channel of images."""

    mean = True


class GlobalAveragePooling3D(_Global):
    """Averages each channel of volumes."""

    mean = True


class GlobalMaxPooling1D(_Plain):
    """Takes the maximum over the time steps of sequences (time, size)."""

    def result(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(dim=1)


class GlobalAveragePooling1D(_Plain):
    """Averages over the time steps of sequences (time, size)."""

    def result(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


def _sides(name: str, value: Any, count: int) -> list[tuple[int, int]]:
    """Return how much is added or removed before and after each of some dimensions."""
    values = list(value) if isinstance(value, list | tuple) else [value] * count
    if count == 1 and len(values) == 2:
        values = [values]
    if len(values) != count:
        raise ArgumentError(f"{name}={value}: expected {count} numbers or pairs of numbers.")
    pairs = [tuple(item) if isinstance(item, list | tuple) else (item, item) for item in values]
    return [(check_count(name, before, least=0), check_count(name, after, least=0)) for before, after in pairs]


class _Sides(_Plain):
    """Adds or removes values around rows."""

    dims = 1
    sign = 1
    sides: list[tuple[int, int]]
    last = False

    def result(self, x: torch.Tensor) -> torch.Tensor:
        x = x.movedim(-1, 1) if self.last else x
        flat = [self.sign * side for pair_of in reversed(self.sides) for side in pair_of]
        x = F.pad(x, [0, 0, *flat] if self.dims == 1 else flat)
        return x.movedim(1, -1) if self.last else x


class ZeroPadding1D(_Sides):
    """Adds zeros before and after sequences (time, size).

    Args:
        padding: How many time steps, or a pair for both sides.
    """

    def __init__(self, padding: Any = 1, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.sides = _sides("padding", padding, 1)


class ZeroPadding2D(_Sides):
    """Adds zeros around images.

    Args:
        padding: How many rows and columns; each may be a pair for both sides.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    dims = 2

    def __init__(
        self, padding: Any = (1, 1), dim_ordering: str = "th", input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.sides, self.last = _sides("padding", padding, self.dims), channels_last(dim_ordering)


class ZeroPadding3D(_Sides):
    """Adds zeros around volumes.

    Args:
        padding: How much in each dimension; each may be a pair for both sides.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    dims = 3

    def __init__(
        self, padding: Any = (1, 1, 1), dim_ordering: str = "th", input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.sides, self.last = _sides("padding", padding, self.dims), channels_last(dim_ordering)


class Cropping1D(_Sides):
    """Removes time steps before and after sequences (time, size).

    Args:
        cropping: How many at each side.
    """

    sign = -1

    def __init__(self, cropping: Any = (1, 1), input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.sides = _sides("cropping", cropping, 1)


class Cropping2D(_Sides):
    """Removes the borders of images.

    Args:
        cropping: Two pairs: rows at the top and bottom, columns at the left and right.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    dims, sign = 2, -1

    def __init__(
        self, cropping: Any = ((0, 0), (0, 0)), dim_ordering: str = "th", input_shape: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.sides, self.last = _sides("cropping", cropping, self.dims), channels_last(dim_ordering)


class Cropping3D(_Sides):
    """Removes the borders of volumes.

    Args:
        cropping: Three pairs, for both sides of each dimension.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    dims, sign = 3, -1

    def __init__(
        self, cropping: Any = ((1, 1), (1, 1), (1, 1)), dim_ordering: str = "th", input_shape: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.sides, self.last = _sides("cropping", cropping, self.dims), channels_last(dim_ordering)


class UpSampling1D(_Plain):
    """Repeats the time steps of sequences (time, size).

    Args:
        length: How often.
    """

    def __init__(self, length: int = 2, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.length = check_count("length", length)

    def result(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self.length, dim=1)


class UpSampling2D(_Plain):
    """Repeats the rows and columns of images.

    Args:
        size: How often, for height and width.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    count = 2

    def __init__(
        self, size: Any = 2, dim_ordering: str = "th", input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.size, self.last = pair("size", size, self.count), channels_last(dim_ordering)

    def result(self, x: torch.Tensor) -> torch.Tensor:
        for place, count in enumerate(self.size, 1 if self.last else 2):
            x = x.repeat_interleave(count, dim=place)
        return x


class UpSampling3D(UpSampling2D):
    """Repeats the values of volumes in all three dimensions."""

    count = 3
