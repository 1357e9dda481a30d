"""Finds the engine to move shards to: the session's own, or that of a runtime that runs beside it."""

from __future__ import annotations

from typing import cast

from orca.core.session import active
from orca.shards.engines.base import Engine


def engine_by_name(name: str, native: object | None = None) -> Engine:
    """Return the engine of a runtime by its name; Ray and Spark have to be running."""
    return cast(Engine, active().engine_of(name, native))
