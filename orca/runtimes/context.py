"""The context: one started runtime, its engine for shards and its warm gangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orca.runtimes import registry
from orca.runtimes.base import Runtime, RuntimeRequest
from orca.runtimes.gangs import NOTHING_NAMED, Gangs, Preload

if TYPE_CHECKING:
    from orca.launch.base import Launcher
    from orca.launch.gang import Gang
    from orca.launch.resources import Resources
    from orca.shards.engines.base import Engine


class Context:
    """A started runtime. Use it in a ``with`` block, or end it with :func:`orca.stop_orca_context`.

    It also offers the attributes of the runtime's own object: on Spark ``sc = init_orca_context(...)`` answers what
    a SparkContext answers.
    """

    def __init__(self, cluster: Runtime, request: RuntimeRequest, successor: Callable[[], Context]) -> None:
        self.cluster = cluster
        self.request = request
        self._successor = successor
        """Returns the active context, for shards that outlive this one."""
        self._gangs = Gangs(cluster.launcher)
        self._engine: Engine | None = None
        self._beside: dict[str, tuple[Runtime, Gangs]] = {}
        self._ended = False

    @property
    def runtime(self) -> str:
        """The name of the runtime."""
        return self.cluster.name

    @property
    def cores(self) -> int:
        """How many shards the runtime works on at once by default."""
        return self.cluster.cores

    @property
    def nodes(self) -> int:
        """How many machines the runtime has at the moment."""
        return self.cluster.nodes()

    @property
    def spark(self) -> Any:
        """The Spark session, where there is one."""
        return getattr(self.cluster, "session", None)

    @property
    def alive(self) -> bool:
        """Whether the runtime still runs."""
        return not self._ended and self.cluster.alive()

    @property
    def engine(self) -> Engine:
        """Where this context stores shards; created on first use, so that starting costs no import."""
        if self._engine is None:
            self._engine = self.cluster.engine(_Lasting(self))
        return self._engine

    def engine_of(self, name: str, native: object | None = None) -> Engine:
        """Return the engine of a runtime by name: this context's own, or that of one running beside it.

        `native` is the runtime's own object (a Spark session), where the data already has one.
        """
        if name == self.runtime:
            return self.engine
        runtime, gangs = self._beside.get(name, (None, None))
        if runtime is None or gangs is None or native is not None:
            runtime = registry.find(name).running(native)
            gangs = Gangs(runtime.launcher)
            self._beside[name] = runtime, gangs
        return runtime.engine(gangs)

    def launcher(self, preload: Sequence[str] = ()) -> Launcher:
        """Return a new launcher of the runtime."""
        return self.cluster.launcher(tuple(preload))

    def gang(
        self,
        world: int,
        preload: Preload | None = None,
        servers: int = 0,
        resources: Resources = NOTHING_NAMED,
    ) -> Gang:
        """Return the warm gang of this size, or a new one; its last `servers` ranks take no slot."""
        if self._ended:
            # Shards outlive the context that created them; their work runs on the active one.
            successor = self._successor()
            if successor.runtime == self.runtime:
                return successor.gang(min(world, successor.cores), preload)
        return self._gangs.get(world, preload, servers, resources)

    def prefer(self, preload: Preload) -> None:
        """Use processes with these modules imported for work on shards."""
        self._gangs.prefer(preload)

    def warm(self, world: int, preload: Preload, servers: int = 0, resources: Resources = NOTHING_NAMED) -> Gang | None:
        """Return the gang of this size if there is one."""
        return self._gangs.warm(world, preload, servers, resources)

    def stop_gang(self, world: int, preload: Preload, servers: int = 0, resources: Resources = NOTHING_NAMED) -> None:
        """End one warm gang, if there is one."""
        self._gangs.stop(world, preload, servers, resources)

    def stop_gangs(self) -> None:
        """End all warm gangs; the context stays."""
        for gangs in (self._gangs, *(gangs for _, gangs in self._beside.values())):
            gangs.stop_all()

    def rest(self) -> None:
        """Let idle gangs free what they still reserve."""
        self._gangs.rest()

    def stop(self) -> None:
        """End the gangs, then what this context itself has started."""
        self._ended = True
        self.stop_gangs()
        beside, self._beside = self._beside, {}
        for runtime, _ in beside.values():
            runtime.stop()
        self.cluster.stop()

    def forget(self) -> None:
        """In a forked child: let go of everything, which belongs to the parent."""
        self._ended, self._beside = True, {}
        self._gangs.forget()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getattr__(self, name: str) -> Any:
        native = getattr(self.__dict__.get("cluster"), "native", None)
        # Spark's own classes take the context for a SparkContext and ask for attributes such as _jsc, too.
        if not name.startswith("__") and native is not None and hasattr(native, name):
            return getattr(native, name)
        raise AttributeError(f"the {getattr(self.__dict__.get('cluster'), 'name', '')} context has no {name!r}")

    def __repr__(self) -> str:
        return f"<Orca context: {self.runtime} runtime, {self.cores} cores>"


class _Lasting(Gangs):
    """The gangs of a context for its engine, whose shards may be used after the context has ended."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.launcher)
        self._context = context

    def get(
        self,
        world: int,
        preload: Preload | None = None,
        servers: int = 0,
        resources: Resources = NOTHING_NAMED,
    ) -> Gang:
        return self._context.gang(world, preload, servers, resources)

    def rest(self) -> None:
        self._context.rest()
