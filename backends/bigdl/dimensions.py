"""Dimensions as BigDL counts them: from 1, negative from the end, with a batch dimension in front if there is one."""

from __future__ import annotations

from typing import Any

from orca.errors import DataError

INTMIN, INTMAX = -2147483648, 2147483647
DOUBLEMAX = 1.7976931348623157e308


def axis(layer: object, dimension: int, ndim: int, n_input_dims: int = -1) -> int:
    """Return the axis, counted from 0, for a dimension counted from 1.

    If `n_input_dims` is positive and the input has one dimension more, the first one is the batch.
    """
    if dimension < 0:
        place = ndim + dimension
    else:
        place = dimension - 1 + (1 if n_input_dims > 0 and ndim == n_input_dims + 1 else 0)
    if not 0 <= place < ndim or dimension == 0:
        raise DataError(
            f"{layer!r} works on dimension {dimension}, but the input has {ndim} dimensions. Dimensions count from 1."
        )
    return place


def need_dims(layer: object, x: Any, *counts: int) -> None:
    """Raise if a tensor does not have one of some numbers of dimensions."""
    if x.ndim not in counts:
        expected = " or ".join(map(str, counts))
        raise DataError(f"{layer!r} received shape {tuple(x.shape)}; expected {expected} dimensions.")


def need_size(layer: object, x: Any, place: int, size: int, what: str) -> None:
    """Raise if a dimension, counted from 0, does not have a size."""
    if x.shape[place] != size:
        raise DataError(f"{layer!r} received shape {tuple(x.shape)}; expected {size} {what}, not {x.shape[place]}.")


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return how much TensorFlow's "SAME" pads before and after."""
    total = max(0, ((size + stride - 1) // stride - 1) * stride + kernel - size)
    return total // 2, total - total // 2
