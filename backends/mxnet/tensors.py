"""Arrays into MXNet and back."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

_EXACT = 2**24
"""Whole numbers up to here are exact in float32, MXNet's usual type."""


def to_mxnet(array: Any, dtype: Any) -> Any:
    """An array as MXNet takes it: numbers in the model's type, whole numbers too large for it as they are."""
    array = np.asarray(array)
    if array.dtype.kind in "iu" and array.size and array.dtype.itemsize > 2:
        if int(array.max()) > _EXACT or int(array.min()) < -_EXACT:
            return mx.nd.array(array, dtype=np.int64)
    if array.dtype != dtype or not array.flags.c_contiguous or not array.ndim or not array.size:
        array = np.array(array, dtype, order="C")
        if not array.ndim or not array.size:
            return mx.nd.array(array, dtype=dtype)
    # Without a copy: MXNet keeps the array, and marks this view of it as one that nobody writes to.
    return mx.nd.from_numpy(array[:], zero_copy=True)


def to_numpy(value: Any) -> Any:
    """Arrays for MXNet's values, in lists and tuples too."""
    if isinstance(value, list | tuple):
        made = tuple(to_numpy(part) for part in value)
        return made[0] if len(made) == 1 else made
    return value if isinstance(value, np.ndarray) else value.asnumpy()


def plain(value: Any) -> Any:
    """An optimizer's own state as a tree of arrays, numbers and None."""
    if isinstance(value, mx.nd.NDArray):
        return value.asnumpy()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def like(told: Any, model: Any) -> Any:
    """Such a tree as MXNet's own, in the form of `model`, which is such a state made anew."""
    if isinstance(model, mx.nd.NDArray):
        return mx.nd.array(np.asarray(told).reshape(model.shape), dtype=model.dtype)
    if isinstance(model, list | tuple):
        return type(model)(like(part, kind) for part, kind in zip(told, model, strict=True))
    return told
