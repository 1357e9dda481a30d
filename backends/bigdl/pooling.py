"""Pooling layers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import need_dims
from orca.backends.bigdl.images import channels_first, check_format, check_padding, padded_same
from orca.backends.bigdl.layer import Layer
from orca.core.arguments import check_count, check_flag
from orca.errors import DataError


class SpatialMaxPooling(Layer):
    """Takes the maximum over windows of images; sizes name the width first.

    Args:
        kw: The width of the window.
        kh: Its height.
        dw: The step in width.
        dh: The step in height.
        pad_w: What is added on both sides; -1 in both directions for TensorFlow's "SAME".
        pad_h: The same for the height.
        to_ceil: Whether the size of the output is rounded up.
        format: "NCHW" or "NHWC".
    """

    def __init__(
        self,
        kw: int,
        kh: int,
        dw: int,
        dh: int,
        pad_w: int = 0,
        pad_h: int = 0,
        to_ceil: bool = False,
        format: str = "NCHW",
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.kernel = (check_count("kh", kh), check_count("kw", kw))
        self.stride = (check_count("dh", dh), check_count("dw", dw))
        self.same, self.pad = check_padding(pad_w, pad_h), (pad_h, pad_w)
        self.up = check_flag("to_ceil", to_ceil)
        self.last = check_format("format", format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        return channels_first(self._pooled, x, self.last)

    def _pooled(self, x: torch.Tensor) -> torch.Tensor:
        if self.same:
            x, pad = padded_same(x, self.kernel, self.stride, -math.inf)
            return F.max_pool2d(x, self.kernel, self.stride, pad)
        return F.max_pool2d(x, self.kernel, self.stride, self.pad, ceil_mode=self.up)


class SpatialAveragePooling(Layer):
    """Averages over windows of images; sizes name the width first.

    Args:
        kw: The width of the window.
        kh: Its height.
        dw: The step in width.
        dh: The step in height.
        pad_w: Zeros added on both sides; -1 in both directions for TensorFlow's "SAME".
        pad_h: The same for the height.
        global_pooling: Whether the window is the whole image.
        ceil_mode: Whether the size of the output is rounded up.
        count_include_pad: Whether zeros that were added count in the average.
        divide: Whether the sum is divided by the number of values.
        format: "NCHW" or "NHWC".
    """

    def __init__(
        self,
        kw: int,
        kh: int,
        dw: int = 1,
        dh: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        global_pooling: bool = False,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divide: bool = True,
        format: str = "NCHW",
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.whole = check_flag("global_pooling", global_pooling)
        self.kernel = (check_count("kh", kh), check_count("kw", kw))
        self.stride = (check_count("dh", dh), check_count("dw", dw))
        self.same, self.pad = check_padding(pad_w, pad_h), (pad_h, pad_w)
        self.up = check_flag("ceil_mode", ceil_mode)
        self.include = check_flag("count_include_pad", count_include_pad)
        self.divide = check_flag("divide", divide)
        self.last = check_format("format", format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        return channels_first(self._pooled, x, self.last)

    def _pooled(self, x: torch.Tensor) -> torch.Tensor:
        divisor = None if self.divide else 1
        if self.whole:
            return F.avg_pool2d(x, x.shape[-2:], divisor_override=divisor)
        if not self.same:
            return F.avg_pool2d(x, self.kernel, self.stride, self.pad, self.up, self.include, divisor)
        padded, pad = padded_same(x, self.kernel, self.stride)
        value = F.avg_pool2d(padded, self.kernel, self.stride, pad, divisor_override=divisor)
        if self.include or not self.divide:
            return value
        ones, _ = padded_same(torch.ones_like(x[..., :1, :, :]), self.kernel, self.stride)
        return value / F.avg_pool2d(ones, self.kernel, self.stride, pad)


class TemporalMaxPooling(Layer):
    """Takes the maximum over windows of sequences (batch, time, frame).

    Args:
        k_w: The number of time steps of the window.
        d_w: The step in time; -1 for the window itself.
    """

    def __init__(self, k_w: int, d_w: int = -1, bigdl_type: str = "float") -> None:
        super().__init__()
        self.kernel = check_count("k_w", k_w)
        self.stride = self.kernel if d_w == -1 else check_count("d_w", d_w)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 2, 3)
        if x.shape[-2] < self.kernel:
            raise DataError(f"{self!r} received {x.shape[-2]} time steps; its window needs {self.kernel}.")
        return F.max_pool1d(x.transpose(-1, -2), self.kernel, self.stride).transpose(-1, -2)


class _VolumetricPooling(Layer):
    def __init__(
        self,
        k_t: int,
        k_w: int,
        k_h: int,
        d_t: int,
        d_w: int,
        d_h: int,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
    ) -> None:
        super().__init__()
        self.kernel = (check_count("k_t", k_t), check_count("k_h", k_h), check_count("k_w", k_w))
        self.stride = (check_count("d_t", d_t), check_count("d_h", d_h), check_count("d_w", d_w))
        self.pad = tuple(
            check_count(name, value, least=0) for name, value in (("pad_t", pad_t), ("pad_h", pad_h), ("pad_w", pad_w))
        )


class VolumetricMaxPooling(_VolumetricPooling):
    """Takes the maximum over windows of volumes; sizes name time, width, height.

    Args:
        k_t: The window in time.
        k_w: Its width.
        k_h: Its height.
        d_t: The step in time.
        d_w: The step in width.
        d_h: The step in height.
        pad_t: What is added on both sides in time.
        pad_w: The same for the width.
        pad_h: The same for the height.
    """

    def __init__(
        self,
        k_t: int,
        k_w: int,
        k_h: int,
        d_t: int,
        d_w: int,
        d_h: int,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__(k_t, k_w, k_h, d_t, d_w, d_h, pad_t, pad_w, pad_h)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 4, 5)
        return F.max_pool3d(x, self.kernel, self.stride, self.pad)


class VolumetricAveragePooling(_VolumetricPooling):
    """Averages over windows of volumes; sizes name time, width, height.

    Args:
        k_t: The window in time.
        k_w: Its width.
        k_h: Its height.
        d_t: The step in time.
        d_w: The step in width.
        d_h: The step in height.
        pad_t: Zeros added on both sides in time.
        pad_w: The same for the width.
        pad_h: The same for the height.
        count_include_pad: Whether zeros that were added count in the average.
        ceil_mode: Whether the size of the output is rounded up.
    """

    def __init__(
        self,
        k_t: int,
        k_w: int,
        k_h: int,
        d_t: int,
        d_w: int,
        d_h: int,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
        count_include_pad: bool = True,
        ceil_mode: bool = False,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__(k_t, k_w, k_h, d_t, d_w, d_h, pad_t, pad_w, pad_h)
        self.include = check_flag("count_include_pad", count_include_pad)
        self.up = check_flag("ceil_mode", ceil_mode)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 4, 5)
        return F.avg_pool3d(x, self.kernel, self.stride, self.pad, self.up, self.include)
