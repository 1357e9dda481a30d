"""Reads the argument ``callbacks=`` of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orca.callbacks.base import Callback
from orca.errors import ArgumentError
from orca.loggers.base import Logger


def split(
    callbacks: Any, adapt: Callable[[object], Callback | None] | None = None
) -> tuple[list[Callback], list[Logger]]:
    """Separate the objects of ``callbacks=`` by where they run.

    Args:
        callbacks: One object, a list or tuple of them, or None.
        adapt: Translates the framework's own callbacks; returns None for anything else.

    Returns:
        The callbacks for the ranks and the loggers for the driver.

    Raises:
        ArgumentError: If an object is neither.
    """
    if callbacks is None:
        items: list[Any] = []
    else:
        items = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    if adapt is not None:
        items = [item if isinstance(item, Callback | Logger) else adapt(item) or item for item in items]
    for item in items:
        if not isinstance(item, Callback | Logger):
            name = item.__name__ if isinstance(item, type) else type(item).__name__
            raise ArgumentError(
                f"callbacks= holds {'the class ' if isinstance(item, type) else 'a '}{name}; expected objects of "
                "orca.callbacks.Callback or Logger."
            )
    return [c for c in items if isinstance(c, Callback)], [c for c in items if isinstance(c, Logger)]
