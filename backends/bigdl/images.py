"""What layers for images share: formats, padding and the order of dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import same_padding
from orca.core.arguments import check_choice
from orca.errors import ArgumentError


def check_format(name: str, value: Any) -> bool:
    """Return whether a format has the channels last."""
    upper = value.upper() if isinstance(value, str) else value
    return check_choice(name, upper, ("NCHW", "NHWC")) == "NHWC"


def check_padding(width: int, height: int) -> bool:
    """Return whether a padding means TensorFlow's "SAME"; raise if it is not valid."""
    if (width, height) == (-1, -1):
        return True
    if width < 0 or height < 0:
        raise ArgumentError(f"pad_w={width}, pad_h={height}: expected both at least 0, or both -1 for SAME padding.")
    return False


def channels_first(function: Callable[[Any], torch.Tensor], x: torch.Tensor, last: bool) -> torch.Tensor:
    """Apply a function that takes the channels first to images with the channels first or last."""
    if not last:
        return function(x)
    return function(x.movedim(-1, -3)).movedim(-3, -1)


def padded_same(
    x: torch.Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], value: float = 0.0
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the input and the padding that is left to do for "SAME"; uneven padding is done here, at the end."""
    sizes = x.shape[x.ndim - len(kernel) :]
    sides = [same_padding(size, k, s) for size, k, s in zip(sizes, kernel, stride, strict=True)]
    if value == 0.0 and all(before == after for before, after in sides):
        return x, tuple(before for before, _ in sides)
    flat = [side for pair in reversed(sides) for side in pair]
    return F.pad(x, flat, value=value), (0,) * len(kernel)
