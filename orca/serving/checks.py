"""Checks of what a request sends against a model's signature: shapes, lengths and types, never with the values."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.serving.datatypes import DATATYPES
from orca.serving.messages import HttpError
from orca.store.values import Port

Array = np.ndarray[Any, Any]

_DEEPEST = 32
"""Axes of an array; numpy has at most 64."""
_KINDS = {dtype: np.dtype(dtype).kind for dtype in DATATYPES}
_EXPECTED = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers"}
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}


def shown(shape: Sequence[Any]) -> str:
    """Format a shape; -1 is any length.

    >>> shown((-1, 192, 192, 3))
    '[?, 192, 192, 3]'
    """
    return f"[{', '.join('?' if side == -1 else str(side) for side in shape)}]"


def check_shape(port: Port, shape: Sequence[int]) -> None:
    """Refuse a shape that the input does not take."""
    expected = port.shape
    fits = len(shape) == len(expected)
    for side, length in zip(shape, expected, strict=False):
        if side != length and length != -1:
            fits = False
    if not fits:
        shape = shape if len(shape) <= _DEEPEST else [*shape[:_DEEPEST], "…"]  # type: ignore[list-item]
        raise HttpError(400, f"The input {port.name!r} takes {shown(expected)}; the request has {shown(shape)}.")
    if 0 in shape:
        raise HttpError(400, f"The input {port.name!r} is empty: its shape is {shown(shape)}.")


def parse_shape(name: str, shape: Any) -> list[int]:
    """Return a shape that a request declares."""
    if type(shape) is list and len(shape) <= _DEEPEST and {int}.issuperset(map(type, shape)):
        if not shape or min(shape) >= 0:
            return shape
    raise HttpError(400, f"The shape of {name!r} has to be a list of integers of at least 0.")


def flatten(name: str, data: Any) -> tuple[list[Any], list[int]]:
    """Return the values of nested lists and their shape.

    >>> flatten("x", [[1, 2, 3], [4, 5, 6]])
    ([1, 2, 3, 4, 5, 6], [2, 3])
    """
    if type(data) is not list:
        raise HttpError(400, f"The data of {name!r} has to be a list.")
    shape = [len(data)]
    while data and type(data[0]) is list:
        width = len(data[0])
        if set(map(type, data)) != {list} or set(map(len, data)) != {width} or len(shape) == _DEEPEST:
            raise HttpError(400, f"The lists in the data of {name!r} have different lengths or depths.")
        data = list(itertools.chain.from_iterable(data))
        shape.append(width)
    return data, shape


def to_array(port: Port, values: list[Any], shape: Sequence[int], declared: str | None = None) -> Array:
    """Return values of a JSON list as an array of this shape, which has been checked.

    Its type is the input's, or one that the request has declared.
    """
    if len(values) != math.prod(shape):
        raise HttpError(
            400,
            f"The input {port.name!r} of shape {shown(shape)} has {math.prod(shape)} values; "
            f"the request has {len(values)}.",
        )
    name = declared or port.dtype
    kind = _KINDS[name]
    if not _JSON_TYPES[kind].issuperset(map(type, values)):
        raise HttpError(400, f"The input {port.name!r} takes {_EXPECTED[kind]} ({name}) only.")
    try:
        return _numbers(values, name).reshape(shape)
    except (OverflowError, FloatingPointError):
        text = f"The input {port.name!r} takes {name}, and a number in the request is beyond it."
        raise HttpError(400, text) from None


@np.errstate(over="raise")
def _numbers(values: list[Any], dtype: str) -> Array:
    """Return an array, or raise if a number is beyond its type."""
    return np.array(values, dtype)


def nested_array(port: Port, data: Any) -> Array:
    """Return nested lists as an array for an input."""
    values, shape = flatten(port.name, data)
    check_shape(port, shape)
    return to_array(port, values, shape)


@functools.lru_cache(1024)
def can_cast(declared: str, dtype: str) -> bool:
    """Return whether a type holds all values of another one."""
    return bool(np.can_cast(np.dtype(declared), np.dtype(dtype), "safe"))


def cast(port: Port, array: Array) -> Array:
    """Return an array, whose type the input's type can hold, in the input's type and a layout that it can share."""
    if array.dtype != port.dtype:
        return array.astype(port.dtype)
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()


def check_rows(ports: Sequence[Port], arrays: Sequence[Array]) -> None:
    """Refuse inputs with different numbers of rows, where the model takes any number of rows."""
    rows = {len(array) for port, array in zip(ports, arrays, strict=True) if port.shape and port.shape[0] == -1}
    if len(rows) > 1:
        raise HttpError(400, f"The inputs have different numbers of rows: {', '.join(map(str, sorted(rows)))}.")
