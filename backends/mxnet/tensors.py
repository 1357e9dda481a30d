"""Arrays into MXNet and back."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


def exact_up_to(dtype: Any) -> int:
    """Up to where a type of floats holds all whole numbers.

    >>> exact_up_to("float32")
    16777216
    """
    return int(2 ** (np.finfo(dtype).nmant + 1))


def too_large(array: Any, dtype: Any) -> bool:
    """Whether some of an array's whole numbers are too large for the model's type."""
    limit = exact_up_to(dtype)
    if array.dtype.kind not in "iu" or not array.size or np.iinfo(array.dtype).max <= limit:
        return False
    return int(array.max()) > limit or int(array.min()) < -limit


def to_mxnet(array: Any, dtype: Any, whole: bool = False) -> Any:
    """An array as MXNet takes it: numbers in the model's type, or as whole numbers."""
    array = np.asarray(array)
    if whole:
        return mx.nd.array(array, dtype=np.int64)
    # A view shows somebody's data, which a model that works in place must not change.
    kept = array.dtype == dtype and array.flags.c_contiguous and array.flags.owndata
    if not kept or not array.ndim or not array.size:
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
