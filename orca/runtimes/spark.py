"""The Spark runtime: joins the active Spark session or builds one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orca.core.arguments import check_mapping, check_text, optional
from orca.core.machine import usable_memory
from orca.errors import ArgumentError, MissingPackageError, ResourceError
from orca.launch import spark_daemon
from orca.runtimes.base import Runtime, RuntimeRequest
from orca.runtimes.packages.spark import java
from orca.runtimes.spark_interrupts import close_interrupted_connections

if TYPE_CHECKING:
    from typing import Self

    from orca.launch.base import Launcher
    from orca.runtimes.gangs import Gangs
    from orca.shards.engines.base import Engine

_MASTERS = {
    "local": None,
    "spark-submit": None,
    "yarn": "yarn",
    "yarn-client": "yarn",
    "yarn-cluster": "yarn",
    "standalone": "spark://…",
    "k8s": "k8s://…",
    "k8s-client": "k8s://…",
    "k8s-cluster": "k8s://…",
}
"""The master of each cluster mode; one that ends in an ellipsis has to be given."""


class SparkRuntime(Runtime):
    """A Spark session; a slot is a core of its executors."""

    name = "spark"
    cluster_modes = tuple(mode for mode in _MASTERS if mode != "local")
    implied_by = ("master",)

    def __init__(self, session: Any, owned: bool) -> None:
        close_interrupted_connections()
        self.session = session
        self._owned = owned
        self.cores = int(session.sparkContext.defaultParallelism)
        self.native = session.sparkContext

    @classmethod
    def accepts_mode(cls, cluster_mode: str) -> bool:
        return cluster_mode in cls.cluster_modes or re.fullmatch(r"local(-cluster)?\[.*\]", cluster_mode) is not None

    @classmethod
    def start(cls, request: RuntimeRequest) -> Self:
        try:
            from pyspark import SparkContext
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise MissingPackageError(
                'runtime="spark" needs PySpark, which is not installed. Run: pip install "orca-estimator[spark]"'
            ) from error
        options = dict(request.options)
        _check_options(options)
        master = _master(request, options.pop("master", None))
        session = SparkSession.getActiveSession()
        if session is not None:
            return cls(session, owned=False)
        if SparkContext._active_spark_context is not None:
            # The user created a bare SparkContext: a session on top of it is ours, the context is not.
            return cls(SparkSession.builder.getOrCreate(), owned=False)
        note, fix = java(quick=False)
        if fix:
            raise MissingPackageError(f'runtime="spark" has no Java that it can use: {note}. Run: {fix}')
        return cls(_session(master, request, options), owned=True)

    @classmethod
    def running(cls, native: object | None = None) -> Self:
        from pyspark.sql import SparkSession

        session = native or SparkSession.getActiveSession()
        if session is None:
            raise ResourceError('Spark is not running. Start it with init_orca_context(runtime="spark").')
        return cls(session, owned=False)

    def launcher(self, preload: Sequence[str] = ()) -> Launcher:
        from orca.launch.spark import SparkLauncher

        return SparkLauncher(self.session)

    def engine(self, gangs: Gangs) -> Engine:
        from orca.shards.engines.spark import SparkEngine

        return SparkEngine(self.session)

    def alive(self) -> bool:
        return self.session.sparkContext._jsc is not None

    def nodes(self) -> int:
        # The driver counts as an executor of its own in this list.
        executors = self.session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
        return max(1, int(executors) - 1)

    def stop(self) -> None:
        if self._owned:
            self._owned = False
            self.session.stop()


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise for arguments that Spark does not know, also if a running session is joined."""
    conf = optional(check_mapping)("conf", options.get("conf")) or {}
    for name in ("master", "app_name"):
        optional(check_text)(name, options.get(name))
    for key in [*conf, *(name for name in options if name not in ("conf", "master", "app_name"))]:
        if "." not in str(key):
            raise ArgumentError(
                f"init_orca_context does not know {key}= for Spark. Spark's own settings have dotted names: "
                'pass them as conf={"spark.…": …}.'
            )


def _master(request: RuntimeRequest, master: str | None) -> str | None:
    """Return the master to connect to; None leaves it to spark-submit."""
    master = master or _MASTERS.get(request.cluster_mode, request.cluster_mode)
    if request.cluster_mode == "local":
        master = master or f"local[{request.cores or '*'}]"
    if master is not None and master.endswith("…"):
        raise ArgumentError(f'cluster_mode={request.cluster_mode!r} needs master="{master}".')
    return master


def _session(master: str | None, request: RuntimeRequest, options: dict[str, Any]) -> Any:
    """Build a Spark session."""
    from pyspark.sql import SparkSession

    # The executors of this machine must run this very interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(options.pop("app_name", None) or "orca")
    local = master is not None and master.startswith("local")
    conf: dict[str, Any] = {"spark.ui.showConsoleProgress": "false", **spark_settings(preload=local)}
    if master is not None:
        builder = builder.master(master)
        conf |= _local_conf(request) if local else _cluster_conf(request)
    conf |= options.pop("conf", None) or {}
    conf |= options
    if "spark.executor.resource.gpu.amount" in conf:
        # A process keeps the GPUs of its first task, and the next task may have others.
        conf.setdefault("spark.python.worker.reuse", "false")
    for key, value in conf.items():
        builder = builder.config(key, str(value))
    session = builder.getOrCreate()
    if local:
        # A Python error on a rank reaches the user as one WorkerError; the JVM's pages of stack traces add nothing.
        session.sparkContext.setLogLevel("FATAL")
    return session


def _local_conf(request: RuntimeRequest) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        # All tasks run in the driver's process: Spark's default of 1 GB is too little. Java takes what it needs.
        "spark.driver.memory": request.memory or f"{max(1024, usable_memory() // 4 >> 20)}m",
    }


def _cluster_conf(request: RuntimeRequest) -> dict[str, str]:
    conf = {"spark.executor.instances": str(request.num_nodes)}
    if request.cores is not None:
        conf["spark.executor.cores"] = str(request.cores)
    if request.memory is not None:
        conf["spark.executor.memory"] = request.memory
    return conf


def spark_settings(preload: bool = True) -> dict[str, str]:
    """Spark settings that make Orca's ranks start quickly and take little memory, for a session of your own.

    With `preload` Python workers start with the frameworks that this process has imported; otherwise they import them
    again after each idle minute. It needs Orca installed on the executors.

    >>> sorted(spark_settings(preload=False))
    ['spark.driver.extraJavaOptions', 'spark.sql.execution.arrow.maxBytesPerBatch']
    """
    # Counted in rows alone, a batch of packed shards would be a whole partition.
    settings = {"spark.sql.execution.arrow.maxBytesPerBatch": "16m"}
    # If a JVM thread dies of OutOfMemoryError the driver hangs; exit instead.
    settings["spark.driver.extraJavaOptions"] = "-XX:+ExitOnOutOfMemoryError"
    if preload:
        from orca.backends.registry import imported

        # Workers most likely use what the driver uses.
        modules = ("pandas", "pyarrow", *imported())
        settings["spark.python.daemon.module"] = spark_daemon.MODULE
        settings[f"spark.executorEnv.{spark_daemon.VARIABLE}"] = ",".join(modules)
        # Spark sets this only for functions on frames and runs one daemon per environment; setting it always means one.
        settings["spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    return settings
