"""Turns the values that a run reports into plain numbers, lists and strings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np


def by_step(first: int, values: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Turn arrays over steps into values per step.

    >>> list(by_step(5, {"loss": [0.5, 0.25]}))
    [(5, {'loss': 0.5}), (6, {'loss': 0.25})]
    """
    columns = {name: np.asarray(array).tolist() for name, array in values.items()}
    for index in range(max(map(len, columns.values()), default=0)):
        yield first + index, {name: column[index] for name, column in columns.items() if index < len(column)}


def numbers_of(record: dict[str, Any]) -> dict[str, float]:
    """Return the numeric values as floats.

    >>> numbers_of({"epoch": 1, "loss": np.float32(0.5), "note": "text"})
    {'epoch': 1.0, 'loss': 0.5}
    """
    values = {name: to_plain(value, nan=True) for name, value in record.items()}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def to_plain(value: Any, nan: bool = False) -> Any:
    """Convert a value to what JSON can represent: arrays become lists; without `nan`, NaN and infinity become None.

    >>> to_plain({"a": np.float32(0.5), "b": float("inf"), "c": (1, np.arange(2))})
    {'a': 0.5, 'b': None, 'c': [1, [0, 1]]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if nan or math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): to_plain(item, nan) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, nan) for item in value]
    return to_plain(value.tolist(), nan) if hasattr(value, "tolist") else str(value)
