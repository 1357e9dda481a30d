"""`init_nncontext`: starts Spark, or joins the session that runs, and returns its context."""

from __future__ import annotations

from typing import Any

from orca.context import active, init_orca_context


def init_nncontext(conf: Any = None, cores: int | None = None) -> Any:
    """Start Orca on Spark, unless it runs there already, and return the SparkContext.

    Args:
        conf: A name for the application, or a SparkConf, for a session that does not run yet.
        cores: Number of cores that ranks may use; all by default.
    """
    context = active()
    if conf is None and cores is None and context is not None and context.spark is not None:
        return context.spark.sparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if isinstance(conf, str):
        builder = builder.appName(conf)
    elif conf is not None:
        builder = builder.config(conf=conf)
    session = builder.getOrCreate()
    more: dict[str, Any] = {} if cores is None else {"cores": cores}
    context = init_orca_context(runtime="spark", **more)
    return context.spark.sparkContext if context.spark is not None else session.sparkContext
