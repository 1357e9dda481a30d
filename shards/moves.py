"""Finds the engine to move shards to: the context's own, or that of a runtime that runs beside it."""

from __future__ import annotations

from typing import Any

from orca.errors import ArgumentError, ResourceError
from orca.shards.engines.base import Engine


def engine_by_name(name: str, session: Any = None) -> Engine:
    """The engine "local", "ray" or "spark"; Ray and Spark have to be running."""
    from orca.context import current

    context = current()
    if context.runtime == name:
        return context.engine
    if name == "local":
        return context.local_engine()
    if name == "ray":
        import ray

        if not ray.is_initialized():
            raise ResourceError('Ray is not running. Start it with init_orca_context(runtime="ray") or ray.init().')
        from orca.shards.engines.ray import RayEngine

        return RayEngine(context.rest)
    if name == "spark":
        from pyspark.sql import SparkSession

        from orca.shards.engines.spark import SparkEngine

        found = session or SparkSession.getActiveSession()
        if found is None:
            raise ResourceError('Spark is not running. Start it with init_orca_context(runtime="spark").')
        return SparkEngine(found)
    raise ArgumentError(f'engine={name!r}: expected "local", "ray" or "spark".')
