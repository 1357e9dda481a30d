"""The context: which runtime this process uses, its warm gangs, and the settings of `OrcaContext`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from orca.core.machine import usable_cpus
from orca.errors import ArgumentError, OrcaError, suggest

if TYPE_CHECKING:
    from orca.launch.base import Launcher
    from orca.launch.gang import Gang
    from orca.shards.engines.base import Engine

_log = logging.getLogger("orca")

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


class Context:
    """A started runtime. Use it in a ``with`` block, or end it with :func:`stop_orca_context`.

    On Spark it also answers what a SparkContext answers, so that ``sc = init_orca_context(...)`` works.
    """

    def __init__(self, runtime: str, cores: int, asked: dict[str, Any]) -> None:
        self.runtime = runtime
        self.cores = cores
        self.asked = asked
        self.spark: Any = None
        self._engine: Engine | None = None
        self._end: Callable[[], None] = lambda: None
        self._gangs: dict[tuple[int, tuple[str, ...]], Gang] = {}
        self._lock = threading.Lock()
        self._ended = False
        self.preload: tuple[str, ...] = ()
        """What new processes for work on shards find imported; the framework in use, once one is."""

    @property
    def engine(self) -> Engine:
        """Where this context keeps shards; made on first use, so that starting costs no import."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    def _make_engine(self) -> Engine:
        if self.runtime == "ray":
            from orca.shards.engines.ray import RayEngine

            return RayEngine(self.rest)
        if self.runtime == "spark":
            from orca.shards.engines.spark import SparkEngine

            return SparkEngine(self.spark)
        from orca.shards.engines.local import LocalEngine

        return LocalEngine(self.gang, self.cores)

    def local_engine(self) -> Engine:
        """An engine on this machine, for shards that leave Ray or Spark."""
        from orca.launch.gang import Gang
        from orca.launch.local import LocalLauncher
        from orca.shards.engines.local import LocalEngine

        if self.runtime == "local":
            return self.engine

        def gang(world: int) -> Gang:
            key = (-world, ("local",))
            if key not in self._gangs:
                self._gangs[key] = Gang(LocalLauncher(world), world)
            return self._gangs[key]

        return LocalEngine(gang, usable_cpus())

    @property
    def nodes(self) -> int:
        """How many machines the runtime has at the moment."""
        if self.runtime == "ray":
            import ray

            return max(1, sum(1 for node in ray.nodes() if node["Alive"]))
        if self.runtime == "spark":
            # The driver counts as an executor of its own in this list.
            known = self.spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
            return max(1, int(known) - 1)
        return 1

    def launcher(self, preload: tuple[str, ...] = ()) -> Launcher:
        """A new launcher for this runtime."""
        if self.runtime == "ray":
            from orca.launch.ray import RayLauncher

            return RayLauncher()
        if self.runtime == "spark":
            from orca.launch.spark import SparkLauncher

            return SparkLauncher(self.spark)
        from orca.launch.local import LocalLauncher

        # What the driver works with, its ranks most likely will too.
        also = tuple(name for name in ("pandas", "pyarrow") if name in sys.modules)
        return LocalLauncher(self.cores, (*preload, *also))

    def gang(self, world: int, preload: tuple[str, ...] | None = None) -> Gang:
        """The warm gang of this size, or a new one."""
        from orca.launch.gang import Gang

        if self._ended and self.runtime == "local" and current().runtime == "local":
            # Shards outlive the context that made them; their work runs on the one of today.
            return current().gang(min(world, current().cores), preload)
        with self._lock:
            for (size, loaded), gang in self._gangs.items():
                if size == world and preload in (None, loaded):
                    return gang
            loaded = self.preload if preload is None else preload
            made = Gang(self.launcher(loaded), world)
            self._gangs[world, loaded] = made
            return made

    def warm(self, world: int, preload: tuple[str, ...]) -> Gang | None:
        """The gang of this size if there is one."""
        return self._gangs.get((world, preload))

    def stop_gang(self, world: int, preload: tuple[str, ...]) -> None:
        """End one warm gang, if it is there."""
        gang = self._gangs.pop((world, preload), None)
        if gang is not None:
            gang.stop()

    def rest(self) -> None:
        """Let idle gangs free what they still reserve."""
        for gang in self._gangs.values():
            gang.launcher.rest()

    def stop(self) -> None:
        """End the gangs, then whatever this context itself has started."""
        global _current
        if _current is self:
            _current = None
        self._ended = True
        self.stop_gangs()
        end, self._end = self._end, lambda: None
        end()
        from orca.launch.local import close_nurseries

        close_nurseries()

    def stop_gangs(self) -> None:
        """End all warm gangs; the context stays."""
        for gang in self._gangs.values():
            with contextlib.suppress(Exception):
                gang.stop()
        self._gangs.clear()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and self.__dict__.get("spark") is not None:
            return getattr(self.spark.sparkContext, name)
        raise AttributeError(f"the {self.__dict__.get('runtime')} context has no {name!r}")

    def __repr__(self) -> str:
        return f"<Orca context: {self.runtime} runtime, {self.cores} cores>"


_current: Context | None = None


def _forget() -> None:
    """In a forked child: the gangs belong to the parent; ending them here would end his."""
    global _current
    if _current is not None:
        _current._ended, _current._gangs, _current._end = True, {}, lambda: None
        _current = None


os.register_at_fork(after_in_child=_forget)


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

    ``runtime`` is ``"local"`` (the default: processes of this machine), ``"ray"`` or ``"spark"``.
    Further arguments go to ``ray.init`` (``address=…``) or to Spark (``master=…``, ``conf={…}``). A second
    call with the same arguments returns the same context; with others it ends the first one and starts anew.

    >>> with init_orca_context(cores=2) as context:
    ...     context.runtime, context.cores
    ('local', 2)
    """
    global _current
    if cluster_mode == "ray":
        cluster_mode, runtime = "local", runtime or "ray"
    if cluster_mode not in _MASTERS and not re.fullmatch(r"local(-cluster)?\[.*\]", str(cluster_mode)):
        raise ArgumentError(
            f"cluster_mode={cluster_mode!r} is not known. Use one of {', '.join(_MASTERS)}."
            + suggest(str(cluster_mode), _MASTERS)
        )
    runtime = runtime or ("local" if cluster_mode == "local" and "master" not in conf else "spark")
    if runtime not in ("local", "ray", "spark"):
        raise ArgumentError(
            f'runtime={runtime!r} is not known. Use "local", "ray" or "spark".'
            + suggest(runtime, ["local", "ray", "spark"])
        )
    if cores not in (None, "*") and (isinstance(cores, bool) or not str(cores).isdigit() or int(cores) < 1):
        raise ArgumentError(f'cores={cores!r}: expected a whole number of at least 1, or "*" for all.')
    count = None if cores in (None, "*") else int(cores)
    asked = {
        "runtime": runtime,
        "mode": cluster_mode,
        "cores": count,
        "memory": memory,
        "nodes": num_nodes,
        **conf,
    }
    if _current is not None:
        if _current.asked == asked and _alive(_current):
            return _current
        _log.info("replacing %r", _current)
        _current.stop()
    _current = _start(runtime, cluster_mode, count, memory, num_nodes, conf, asked)
    return _current


def _alive(context: Context) -> bool:
    """Whether the runtime behind the context is still there; the user may have stopped it by himself."""
    if context.runtime == "ray":
        import ray

        return bool(ray.is_initialized())
    if context.runtime == "spark":
        return context.spark.sparkContext._jsc is not None
    return True


def _start(
    runtime: str,
    cluster_mode: str,
    cores: int | None,
    memory: str | None,
    num_nodes: int,
    conf: dict[str, Any],
    asked: dict[str, Any],
) -> Context:
    if runtime == "ray":
        from orca.runtimes import start_ray

        cpus, end = start_ray(cores, memory, dict(conf))
        context = Context(runtime, cpus, asked)
        context._end = end
        return context
    if runtime == "spark":
        from orca.runtimes import start_spark

        settings = dict(conf)
        master = settings.pop("master", None) or _MASTERS.get(cluster_mode, cluster_mode)
        if cluster_mode == "local":
            master = master or f"local[{cores or '*'}]"
        if master is not None and master.endswith("…"):
            raise ArgumentError(f'cluster_mode={cluster_mode!r} needs master="{master}".')
        session, end = start_spark(master, cores, memory, num_nodes, settings)
        context = Context(runtime, int(session.sparkContext.defaultParallelism), asked)
        context.spark, context._end = session, end
        return context
    if conf:
        raise ArgumentError(
            f"init_orca_context does not know {', '.join(f'{key}=' for key in conf)} for the local runtime. "
            'Did you mean runtime="ray" or runtime="spark"?'
        )
    if num_nodes != 1:
        raise ArgumentError(
            f'num_nodes={num_nodes}: the local runtime is this one machine. Use runtime="ray" or "spark".'
        )
    return Context(runtime, cores or usable_cpus(), asked)


def current() -> Context:
    """The active context; the local one starts by itself, and one whose runtime was stopped is not active."""
    if _current is not None and not _alive(_current):
        _current.stop()
    return _current if _current is not None else init_orca_context()


def stop_orca_context() -> None:
    """End the active context and what it has started; without one, do nothing."""
    if _current is not None:
        _current.stop()


atexit.register(stop_orca_context)


class _Settings(type):
    """Lets ``OrcaContext.log_output = True`` check its value."""

    _choices: ClassVar[dict[str, tuple[Any, ...]]] = {
        "log_output": (True, False),
        "pandas_read_backend": ("arrow", "pandas", "spark"),
        "serialize_data_creator": (True, False),
        "train_data_store": ("DRAM", "DISK"),
        "barrier_mode": (True, False),
    }

    def __setattr__(cls, name: str, value: Any) -> None:
        choices = cls._choices.get(name)
        if name.startswith("__"):
            return super().__setattr__(name, value)
        if choices is None and name != "shard_size":
            raise ArgumentError(
                f"OrcaContext has no setting {name!r}. Settings: {', '.join(cls._choices)}, shard_size."
                + suggest(name, cls._choices)
            )
        if choices is not None and value not in choices:
            raise ArgumentError(f"OrcaContext.{name} = {value!r}: expected one of {choices}.")
        super().__setattr__(name, value)


class OrcaContext(metaclass=_Settings):
    """Settings of this process, and ways to the runtime's own objects."""

    log_output = False
    """Show what the ranks print, each line with its rank."""
    pandas_read_backend = "arrow"
    serialize_data_creator = False
    train_data_store = "DRAM"
    barrier_mode = True
    shard_size: int | None = None

    @staticmethod
    def get_spark_session() -> Any:
        """The Spark session of the active context."""
        spark = current().spark
        if spark is None:
            raise OrcaError(
                f"The {current().runtime} context has no Spark session. "
                'Start one with init_orca_context(runtime="spark").'
            )
        return spark

    @staticmethod
    def get_spark_context() -> Any:
        """The SparkContext of the active context."""
        return OrcaContext.get_spark_session().sparkContext

    @staticmethod
    def get_sql_context() -> Any:
        """The Spark session, under the name the predecessor gave it."""
        return OrcaContext.get_spark_session()

    @staticmethod
    def get_ray_context() -> Context:
        """The active context, which must be Ray's."""
        if current().runtime != "ray":
            raise OrcaError(
                f'The {current().runtime} context is not on Ray. Start it with init_orca_context(runtime="ray").'
            )
        return current()
