"""The active context of this process: start it, stop it, and the settings of `OrcaContext`."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Any

from orca.core.arguments import check_count, check_size, check_text, wrong
from orca.core.settings import Settings, settings
from orca.errors import ArgumentError, OrcaError
from orca.runtimes import registry
from orca.runtimes.base import RuntimeRequest
from orca.runtimes.context import Context

_log = logging.getLogger("orca")
_current: Context | None = None
_starting = threading.RLock()


def init_orca_context(
    cluster_mode: str = "local",
    runtime: str | None = None,
    *,
    cores: int | str | None = None,
    memory: str | None = None,
    num_nodes: int = 1,
    **conf: Any,
) -> Context:
    """Start (or join) the runtime that estimators and XShards of this process use.

    A second call with the same arguments returns the same context; with others it stops the first one and starts
    a new one.

    Args:
        cluster_mode: BigDL's name for where to run, such as "local" or "yarn-client"; `runtime` is usually enough.
        runtime: "local" (the default: processes of this machine), "ray", "spark", or a registered runtime.
        cores: Cores to use, or on a cluster the cores of each executor; "*" or None for all.
        memory: Memory such as "4g": Spark's driver or executors, or Ray's object store.
        num_nodes: Number of executors on a Spark cluster.
        **conf: Arguments of ``ray.init`` (``address=…``) or of Spark (``master=…``, ``conf={…}``).

    Returns:
        The context; on Spark it also offers what a SparkContext offers.

    Raises:
        ArgumentError: An argument is unknown or has a wrong value.
        MissingPackageError: The runtime's package, or Java for Spark, is not installed.

    >>> with init_orca_context(cores=2) as context:
    ...     context.runtime, context.cores
    ('local', 2)
    """
    global _current
    mode = check_text("cluster_mode", cluster_mode, "the name of a mode")
    name = registry.implied(mode, set(conf))
    cluster = registry.find(name if runtime is None else check_text("runtime", runtime, "the name of a runtime"))
    request = RuntimeRequest(
        cluster.name,
        "local" if mode == cluster.name else mode,
        _cores(cores),
        None if memory is None else check_size("memory", memory),
        check_count("num_nodes", num_nodes),
        conf,
    )
    with _starting:
        if _current is not None:
            if _current.request == request and _current.alive:
                return _current
            _log.info("replacing %r", _current)
            stop_orca_context()
        _current = Context(cluster.start(request), request, current)
        return _current


def _cores(cores: int | str | None) -> int | None:
    """Return a number of cores; None for all."""
    if cores is None or (isinstance(cores, str) and cores == "*"):
        return None
    try:
        return check_count("cores", int(cores) if isinstance(cores, str) and cores.isdecimal() else cores)
    except ArgumentError:
        raise wrong("cores", cores, 'an integer of at least 1, or "*" for all') from None


def current() -> Context:
    """Return the active context; without one, or if its runtime was stopped, start the local one."""
    with _starting:  # threads that need a context share one
        if _current is not None and not _current.alive:
            stop_orca_context()
        return _current if _current is not None else init_orca_context()


def workers_for(batch_size: int | None, workers: int | None = None) -> int:
    """Return a number of workers: as given, or the cores of the context, at most one per row of a batch."""
    return workers or max(1, min(current().cores, batch_size or current().cores))


def active() -> Context | None:
    """Return the active context, or None; unlike `current`, it starts nothing."""
    with _starting:
        return _current if _current is not None and _current.alive else None


def stop_orca_context() -> None:
    """Stop the active context and what it has started; without one, do nothing."""
    global _current
    context, _current = _current, None
    if context is not None:
        context.stop()


def _forget() -> None:
    """In a forked child: forget the context, whose processes belong to the parent."""
    global _current, _starting
    _starting = threading.RLock()
    if _current is not None:
        _current.forget()
        _current = None


os.register_at_fork(after_in_child=_forget)
atexit.register(stop_orca_context)


class _Settings(type):
    """Lets ``OrcaContext.log_output = True`` check its value."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_") or not hasattr(settings, name):
            raise AttributeError(f"OrcaContext has no setting {name!r}")
        return getattr(settings, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            settings.change(name, value)

    def __delattr__(cls, name: str) -> None:
        settings.change(name, getattr(Settings, name))


class OrcaContext(metaclass=_Settings):
    """Settings of this process, and access to the runtime's own objects.

    ``OrcaContext.log_output = True`` shows what the ranks print. The other settings of BigDL Orca are accepted and
    have no effect.
    """

    @staticmethod
    def get_spark_session() -> Any:
        """Return the Spark session of the active context."""
        session = current().spark
        if session is None:
            raise OrcaError(
                f"The {current().runtime} context has no Spark session. "
                'Start one with init_orca_context(runtime="spark").'
            )
        return session

    @staticmethod
    def get_spark_context() -> Any:
        """Return the SparkContext of the active context."""
        return OrcaContext.get_spark_session().sparkContext

    @staticmethod
    def get_sql_context() -> Any:
        """Return the Spark session, under BigDL's name for it."""
        return OrcaContext.get_spark_session()

    @staticmethod
    def get_ray_context() -> Context:
        """Return the active context, which must be Ray's."""
        if current().runtime != "ray":
            raise OrcaError(
                f'The {current().runtime} context is not on Ray. Start it with init_orca_context(runtime="ray").'
            )
        return current()


__all__ = ["Context", "OrcaContext", "current", "init_orca_context", "stop_orca_context"]
