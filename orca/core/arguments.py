"""Checks of single arguments; each error says what was expected."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from typing import Any

from orca.errors import ArgumentError


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an integer of at least `least`."""
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise ArgumentError(f"{name}={value!r}: expected an integer of at least {least}.")
    return count


def check_limit(name: str, value: Any) -> float | None:
    """Return `value` as a float above 0, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isinf(value):
        raise ArgumentError(f"{name}={value!r}: expected a number above 0.")
    return float(value)


def value_range(value: Any) -> tuple[float, float] | None:
    """Return a range (min, max); a single number n means (-n, n)."""
    if value is None:
        return None
    if isinstance(value, tuple | list) and len(value) == 2 and value[0] < value[1]:
        return float(value[0]), float(value[1])
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return -float(value), float(value)
    raise ArgumentError(f"clip_value={value!r}: expected a number above 0 or a pair (min, max).")


def check_classes(value: Any) -> dict[int, float] | None:
    """Return weights by class number, or None."""
    if value is None:
        return None
    filled = isinstance(value, Mapping) and value
    if not filled or not all(isinstance(w, int | float) and w >= 0 and int(c) == c >= 0 for c, w in value.items()):
        raise ArgumentError(
            f"class_weight={value!r}: expected a dict of class numbers and weights, such as {{0: 1.0, 1: 5.0}}."
        )
    return {int(key): float(weight) for key, weight in value.items()}


def check_folder(name: str, value: Any) -> str | None:
    """Return the path of a folder, local or an fsspec URL, or None.

    >>> check_folder("model_dir", "runs/first")
    'runs/first'
    >>> check_folder("model_dir", "")
    Traceback (most recent call last):
    ...
    orca.errors.ArgumentError: model_dir='': expected the path of a folder, or None.
    """
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path.rpartition("://")[2].strip("/ "):
        raise ArgumentError(f"{name}={value!r}: expected the path of a folder, or None.")
    return path
