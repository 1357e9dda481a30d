"""The contract between a gang and the runtime that gives it processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Rank:
    """What one rank knows about its place in the gang; assigned by the driver, never guessed."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    host: str
    address: str
    threads: int


@dataclass(frozen=True)
class Hello:
    """What a rank tells the driver about itself when it connects."""

    rank: int
    host: str
    host_id: str
    address: str
    pid: int
    born: float
    cpus: int


@dataclass(frozen=True)
class Event:
    """One message from a rank to the driver while a call runs: kind is "progress", "epoch" or "log"."""

    kind: str
    rank: int
    data: Mapping[str, Any]


class Handle(Protocol):
    """A shard that can be opened on a rank."""

    rows: int

    def load(self) -> Any:
        """Return the shard's data, sharing memory with other ranks of the host where the engine can."""


@dataclass(frozen=True)
class Meeting:
    """Where the driver listens and the secret that lets a rank in."""

    host: str
    port: int
    key: bytes


class Launcher(ABC):
    """Brings n rank processes to life on one runtime, tells which died, and ends them.

    Each process has to run :func:`orca.launch.rank.serve` with its rank and the meeting's address;
    everything after that (calls, events, heartbeats, failures) is the gang's business.
    """

    runtime: str = ""
    warm: bool = True
    """Whether the processes outlive one call. If not, the gang starts them anew for each call."""

    bind: str = "127.0.0.1"
    """The address on which the driver listens for its ranks."""

    @abstractmethod
    def slots(self, wanted: int = 0) -> int:
        """How many ranks this cluster can run at once; a young cluster may be given a moment to get there."""

    @abstractmethod
    def start(self, world: int, meeting: Meeting, sources: Mapping[str, Any]) -> None:
        """Start `world` processes; return without waiting for them."""

    @abstractmethod
    def deaths(self) -> dict[int, str]:
        """Ranks whose process is known to have ended, with the reason in words."""

    @abstractmethod
    def stop(self, hellos: Mapping[int, Hello], patience: float) -> None:
        """End every process: wait `patience` seconds for it to leave, then use force; free what was reserved."""

    def advice(self, world: int) -> str:
        """What to do when `world` ranks do not fit into the slots."""
        return f"Use workers={self.slots()} or fewer."

    def preparing(self) -> bool:
        """Whether the runtime still works on the data, so that the ranks cannot have started yet."""
        return False

    def tail(self, rank: int) -> list[str]:
        """The last lines the rank wrote, where the runtime keeps them; native code's words are only here."""
        return []

    def begin(self, sources: Mapping[str, Any]) -> dict[str, Any]:
        """Reserve what one call needs and make its sources reachable; return what each rank is handed."""
        return {name: source.handles() for name, source in sources.items()}

    def finish(self) -> None:
        """Undo what `begin` did for one call; what it reserved may be kept for a moment, for the next call."""

    def rest(self) -> None:
        """Free what an idle gang still reserves."""
