"""Starts Ray or Spark for the context, or joins what already runs, and says how to end what was started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from orca.backends.registry import imported
from orca.core.machine import usable_memory
from orca.errors import ArgumentError, MissingPackageError
from orca.launch import spark_daemon

Ender = Callable[[], None]


def _nothing() -> None:
    return None


def java_problem() -> str | None:
    """Return why Spark has no Java to run on, or None if it has."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if command is None:
        return (
            "Spark needs Java 17 or newer and none was found. Install it (Debian, Ubuntu: apt-get install "
            "openjdk-17-jre-headless; conda: conda install openjdk=17) or set JAVA_HOME."
        )
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30)
    except OSError as error:
        return f"JAVA_HOME or PATH points to {command}, which cannot be run ({error}). Install Java 17."
    words = (said.stderr + said.stdout).split('"')
    major = words[1].split(".")[0] if len(words) > 1 else ""
    if major.isdigit() and int(major) < 17:
        return f"Spark needs Java 17 or newer; {command} is version {words[1]}. Install Java 17 or set JAVA_HOME."
    return None


def start_ray(cores: int | None, memory: str | None, settings: dict[str, Any]) -> tuple[int, Ender]:
    """Join the Ray of this process or of `address=`, or start one; return its CPUs and how to end it."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            'runtime="ray" needs Ray, which is not installed. Run: pip install "orca-estimator[ray]"'
        ) from error
    if ray.is_initialized():
        return int(ray.cluster_resources().get("CPU", 1)), _nothing
    options: dict[str, Any] = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "configure_logging": False,
        **settings,
    }
    if "address" not in options:
        options.setdefault("num_cpus", cores)
        if memory is not None:
            options.setdefault("object_store_memory", _bytes(memory))
    elif "num_cpus" in options:
        raise ArgumentError("num_cpus= cannot be given together with address=: a running Ray has its own CPUs.")
    # Ray's accelerator probe would otherwise warn once for each start that CPU actors see no GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(**{key: value for key, value in options.items() if value is not None})
    return int(ray.cluster_resources().get("CPU", 1)), ray.shutdown


def spark_settings(preload: bool = True) -> dict[str, str]:
    """Spark settings that make Orca's ranks start quickly and take little memory, for a session of your own.

    With `preload` Python workers find the frameworks that this process has imported, where they would import them
    anew after each minute of idleness; it needs Orca installed on the executors.

    >>> sorted(spark_settings(preload=False))
    ['spark.driver.extraJavaOptions', 'spark.sql.execution.arrow.maxBytesPerBatch']
    """
    # Counted in rows alone, a batch of packed shards would be a whole partition.
    settings = {"spark.sql.execution.arrow.maxBytesPerBatch": "16m"}
    # A thread of Spark's that dies of it leaves everybody else waiting for ever.
    settings["spark.driver.extraJavaOptions"] = "-XX:+ExitOnOutOfMemoryError"
    if preload:
        # What the driver works with, its workers most likely will too.
        modules = ("pandas", "pyarrow", *imported())
        settings["spark.python.daemon.module"] = spark_daemon.MODULE
        settings[f"spark.executorEnv.{spark_daemon.VARIABLE}"] = ",".join(modules)
        # Spark sets this for functions on frames alone, and has a daemon for each environment: let it be one for all.
        settings["spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    return settings


def start_spark(
    master: str | None,
    cores: int | None,
    memory: str | None,
    num_nodes: int,
    settings: dict[str, Any],
) -> tuple[Any, Ender]:
    """Join the active Spark session or build one for `master`; return it and how to end it."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingPackageError(
            'runtime="spark" needs PySpark, which is not installed. Run: pip install "orca-estimator[spark]"'
        ) from error
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, _nothing
    if SparkContext._active_spark_context is not None:
        # The user made a bare SparkContext: a session on top of it is ours, the context is not.
        return SparkSession.builder.getOrCreate(), _nothing
    problem = java_problem()
    if problem is not None:
        raise MissingPackageError(problem)
    # The executors of this machine must run this very interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(str(settings.pop("app_name", "orca")))
    local = master is not None and master.startswith("local")
    conf: dict[str, Any] = {"spark.ui.showConsoleProgress": "false", **spark_settings(preload=local)}
    if master is not None:
        builder = builder.master(master)
        if local:
            conf |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
            }
            # All tasks run in the driver's process: Spark's own 1 GB is little for that. Java takes what it needs.
            conf["spark.driver.memory"] = memory or f"{max(1024, usable_memory() // 4 >> 20)}m"
        else:
            conf |= {"spark.executor.instances": str(num_nodes)}
            if cores is not None:
                conf["spark.executor.cores"] = str(cores)
            if memory is not None:
                conf["spark.executor.memory"] = memory
    conf |= settings.pop("conf", {})
    conf |= settings
    for key, value in conf.items():
        if "." not in key:
            raise ArgumentError(
                f"init_orca_context does not know {key}= for Spark. Spark's own settings have dotted names: "
                'pass them as conf={"spark.…": …}.'
            )
        builder = builder.config(key, str(value))
    session = builder.getOrCreate()
    if local:
        # A Python mistake on a rank reaches the user as one WorkerError; the JVM's pages of trace add nothing.
        session.sparkContext.setLogLevel("FATAL")
    return session, session.stop


def _bytes(text: str) -> int:
    """Turn "2g" into a number of bytes."""
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    cleaned = text.strip().lower().removesuffix("b")
    if cleaned and cleaned[-1] in units and cleaned[:-1].isdigit():
        return int(cleaned[:-1]) << units[cleaned[-1]]
    if cleaned.isdigit():
        return int(cleaned)
    raise ArgumentError(f'memory={text!r}: expected a size such as "2g" or "512m".')
