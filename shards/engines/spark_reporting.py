"""Spark DataFrames whose methods raise what a model raised on a worker, in place of Spark's pages on it."""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import Any

from orca.shards.transform_errors import one_error


def reporting(frame: Any) -> Any:
    """Let a frame, and those that its methods make of it, raise a `TransformError` where a function on rows fails."""
    base = type(frame)
    if base not in _classes:
        _classes[base] = _reporting(base)
    frame.__class__ = _classes[base]
    return frame


_classes: dict[type, type] = {}


def _reporting(base: type) -> type:
    """Return a subclass of Spark's own class: users may test for that, and Spark's functions do."""

    class ReportingFrame(base):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name.startswith("_") or not isinstance(value, MethodType):
                return value

            @wraps(value)
            def call(*args: Any, **options: Any) -> Any:
                with one_error():
                    result = value(*args, **options)
                return reporting(result) if type(result) is base else result

            return call

    ReportingFrame.__name__, ReportingFrame.__qualname__ = base.__name__, base.__qualname__
    ReportingFrame.__module__, ReportingFrame.__doc__ = base.__module__, base.__doc__
    return ReportingFrame
