"""The contract of a runtime: it starts, provides launchers for ranks and an engine for shards, and stops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import Self

    from orca.launch.base import Launcher
    from orca.runtimes.gangs import Gangs
    from orca.shards.engines.base import Engine


@dataclass(frozen=True)
class RuntimeRequest:
    """What `init_orca_context` was asked for."""

    runtime: str
    cluster_mode: str = "local"
    cores: int | None = None
    memory: str | None = None
    num_nodes: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments, which only this runtime understands."""


class Runtime(ABC):
    """A running place for ranks and shards. Register the class as an entry point `orca.runtimes`."""

    name: ClassVar[str] = ""
    cluster_modes: ClassVar[tuple[str, ...]] = ()
    """Values of `cluster_mode=` that mean this runtime."""
    implied_by: ClassVar[tuple[str, ...]] = ()
    """Further arguments of `init_orca_context` that mean this runtime."""
    cores: int = 1
    """How many shards it works on at once by default."""
    many_hosts: ClassVar[bool] = True
    """Whether ranks may run on several hosts."""
    native: object | None = None
    """The runtime's own object; the context also offers its attributes."""

    @classmethod
    @abstractmethod
    def start(cls, request: RuntimeRequest) -> Self:
        """Join the runtime that is running, or start it."""

    @classmethod
    def running(cls, native: object | None = None) -> Self:
        """Return the runtime that runs in this process beside the context's own, without starting anything."""
        from orca.errors import ResourceError

        raise ResourceError(f'The runtime {cls.name!r} is not running. Start it with init_orca_context("{cls.name}").')

    @classmethod
    def accepts_mode(cls, cluster_mode: str) -> bool:
        """Whether `cluster_mode=` means this runtime."""
        return cluster_mode in cls.cluster_modes

    @abstractmethod
    def launcher(self, preload: Sequence[str] = ()) -> Launcher:
        """Return a new launcher; its ranks may find the modules `preload` imported already."""

    def engine(self, gangs: Gangs) -> Engine:
        """Return the engine that stores shards: by default mapped files, with work done by this runtime's gangs."""
        from orca.shards.engines.local import LocalEngine

        return LocalEngine(gangs.get, self.cores)

    def alive(self) -> bool:
        """Whether the runtime still runs; its user may have stopped it."""
        return True

    def nodes(self) -> int:
        """Return how many machines the runtime has at the moment."""
        return 1

    def stop(self) -> None:
        """End what `start` has started; leave alone what it has joined."""
