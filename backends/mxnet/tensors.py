"""Conversion of arrays to MXNet and back."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


def exact_up_to(dtype: Any) -> int:
    """Return the largest integer up to which a float dtype represents all integers exactly.

    >>> exact_up_to("float32")
    16777216
    """
    return int(2 ** (np.finfo(dtype).nmant + 1))


def too_large(array: Any, dtype: Any) -> bool:
    """Return whether an array has integers that are too large for the model's dtype."""
    limit = exact_up_to(dtype)
    if array.dtype.kind not in "iu" or not array.size or np.iinfo(array.dtype).max <= limit:
        return False
    return int(array.max()) > limit or int(array.min()) < -limit


def to_mxnet(array: Any, dtype: Any, as_int64: bool = False) -> Any:
    """Convert an array to MXNet, in the model's dtype or as int64."""
    array = np.asarray(array)
    if as_int64:
        return mx.nd.array(array, dtype=np.int64)
    # A view is somebody else's data, which a model that works in place must not change.
    reusable = array.dtype == dtype and array.flags.c_contiguous and array.flags.owndata
    if not reusable or not array.ndim or not array.size:
        array = np.array(array, dtype, order="C")
        if not array.ndim or not array.size:
            return mx.nd.array(array, dtype=dtype)
    # Zero-copy: MXNet keeps the array alive and marks this view of it read-only.
    return mx.nd.from_numpy(array[:], zero_copy=True)


def to_numpy(value: Any) -> Any:
    """Convert MXNet arrays, also in lists and tuples, to numpy."""
    if isinstance(value, list | tuple):
        arrays = tuple(to_numpy(part) for part in value)
        return arrays[0] if len(arrays) == 1 else arrays
    return value if isinstance(value, np.ndarray) else value.asnumpy()


def plain(value: Any) -> Any:
    """Convert an optimizer state to a tree of numpy arrays, numbers and None."""
    if isinstance(value, mx.nd.NDArray):
        return value.asnumpy()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def like(state: Any, template: Any) -> Any:
    """Convert such a tree back, to the structure of `template`, a freshly created state."""
    if isinstance(template, mx.nd.NDArray):
        return mx.nd.array(np.asarray(state).reshape(template.shape), dtype=template.dtype)
    if isinstance(template, list | tuple):
        return type(template)(like(part, kind) for part, kind in zip(state, template, strict=True))
    return state
