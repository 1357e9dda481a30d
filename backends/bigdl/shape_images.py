"""Layers that pad, crop and resize images and volumes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import need_dims
from orca.backends.bigdl.images import channels_first, check_format
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import shape_of
from orca.core.arguments import check_choice, check_count, check_flag, shown
from orca.errors import ArgumentError, DataError


class SpatialZeroPadding(Layer):
    """Adds zeros around images; negative numbers crop.

    Args:
        pad_left: Columns at the left.
        pad_right: Columns at the right.
        pad_top: Rows at the top.
        pad_bottom: Rows at the bottom.
    """

    def __init__(self, pad_left: int, pad_right: int, pad_top: int, pad_bottom: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.pad = [int(side) for side in (pad_left, pad_right, pad_top, pad_bottom)]

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        return F.pad(x, self.pad)


def _sides(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ArgumentError(f"{name}={shown(value)}: expected two integers, for the beginning and the end.")
    return check_count(name, value[0], least=0), check_count(name, value[1], least=0)


def _cropped(layer: Layer, x: torch.Tensor, crops: list[tuple[int, int]]) -> torch.Tensor:
    first = x.ndim - len(crops)
    for place, (before, after) in enumerate(crops, first):
        if before + after >= x.shape[place]:
            raise DataError(f"{layer!r} crops all of a dimension of size {x.shape[place]}.")
        x = x.narrow(place, before, x.shape[place] - before - after)
    return x


class Cropping2D(Layer):
    """Removes the borders of images.

    Args:
        heightCrop: How many rows at the top and at the bottom.
        widthCrop: How many columns at the left and at the right.
        data_format: "NCHW" or "NHWC".
    """

    def __init__(self, heightCrop: Any, widthCrop: Any, data_format: str = "NCHW", bigdl_type: str = "float") -> None:
        super().__init__()
        self.crops = [_sides("heightCrop", heightCrop), _sides("widthCrop", widthCrop)]
        self.last = check_format("data_format", data_format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 4)
        return channels_first(lambda images: _cropped(self, images, self.crops), x, self.last)


class Cropping3D(Layer):
    """Removes the borders of volumes.

    Args:
        dim1Crop: How many values at the beginning and at the end of the first dimension.
        dim2Crop: The same for the second.
        dim3Crop: The same for the third.
        data_format: "channel_first" or "channel_last".
    """

    def __init__(
        self, dim1Crop: Any, dim2Crop: Any, dim3Crop: Any, data_format: str = "channel_first", bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        self.crops = [_sides("dim1Crop", dim1Crop), _sides("dim2Crop", dim2Crop), _sides("dim3Crop", dim3Crop)]
        self.last = check_choice("data_format", data_format, ("channel_first", "channel_last")) == "channel_last"

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 5)
        if self.last:
            return _cropped(self, x.movedim(-1, 1), self.crops).movedim(1, -1)
        return _cropped(self, x, self.crops)


class UpSampling1D(Layer):
    """Repeats each time step of sequences (batch, time, frame).

    Args:
        length: How often.
    """

    def __init__(self, length: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.length = check_count("length", length)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3)
        return x.repeat_interleave(self.length, dim=1)


class UpSampling2D(Layer):
    """Repeats the rows and columns of images.

    Args:
        size: How often, for height and width.
        data_format: "nchw" or "nhwc".
    """

    def __init__(self, size: Any, data_format: str = "nchw", bigdl_type: str = "float") -> None:
        super().__init__()
        self.size = shape_of("size", size)
        if len(self.size) != 2:
            raise ArgumentError(f"size={shown(size)}: expected two integers, for height and width.")
        self.last = check_format("data_format", data_format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 4)
        place = 1 if self.last else 2
        return x.repeat_interleave(self.size[0], dim=place).repeat_interleave(self.size[1], dim=place + 1)


class UpSampling3D(Layer):
    """Repeats the values of volumes (batch, channels, depth, height, width).

    Args:
        size: How often, for depth, height and width.
    """

    def __init__(self, size: Any, bigdl_type: str = "float") -> None:
        super().__init__()
        self.size = shape_of("size", size)
        if len(self.size) != 3:
            raise ArgumentError(f"size={shown(size)}: expected three integers, for depth, height and width.")

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 5)
        for place, count in enumerate(self.size, 2):
            x = x.repeat_interleave(count, dim=place)
        return x


class ResizeBilinear(Layer):
    """Resizes images by linear interpolation, without the half-pixel shift of later libraries.

    Args:
        output_height: The height of the output.
        output_width: The width of the output.
        align_corner: Whether the corner pixels of input and output coincide.
        data_format: "NCHW" or "NHWC".
    """

    def __init__(
        self,
        output_height: int,
        output_width: int,
        align_corner: bool = False,
        data_format: str = "NCHW",
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.size = (check_count("output_height", output_height), check_count("output_width", output_width))
        self.align = check_flag("align_corner", align_corner)
        self.last = check_format("data_format", data_format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 4)
        return channels_first(self._resized, x, self.last)

    def _resized(self, x: torch.Tensor) -> torch.Tensor:
        rows = self._matrix(x.shape[-2], self.size[0], x)
        columns = self._matrix(x.shape[-1], self.size[1], x)
        return rows @ x @ columns.T

    def _matrix(self, before: int, after: int, like: torch.Tensor) -> torch.Tensor:
        """Return the weights (after, before) of the values from which each new value is interpolated."""
        scale = (before - 1) / (after - 1) if self.align and after > 1 else before / after
        places = torch.arange(after, device=like.device, dtype=like.dtype) * scale
        low = places.floor().long().clamp(max=before - 1)
        share = places - low
        matrix = torch.zeros(after, before, device=like.device, dtype=like.dtype)
        index = torch.arange(after, device=like.device)
        matrix[index, low] += 1 - share
        matrix[index, (low + 1).clamp(max=before - 1)] += share
        return matrix
