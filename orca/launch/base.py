"""The contract between a gang and the runtime that provides its processes and its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from orca.launch.resources import Resources

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


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
    devices: tuple[str, ...] | None = None
    """Ids of the GPUs that only this rank sees; None if it sees all of its host."""


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
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LogLine:
    """A line that a rank has printed."""

    rank: int
    line: str
    stream: str = "stdout"


class Handle(Protocol):
    """A shard that a rank can open."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def load(self) -> Any:
        """Return the shard's data, sharing memory with other ranks of the host where the engine can."""


@dataclass(frozen=True)
class Absent:
    """The handle of rows that a host does not have, because none of its ranks needs them."""

    rows: int

    def load(self) -> Any:
        raise LookupError(f"These {self.rows} rows are on another host.")


def merged_ranges(ranges: Iterable[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """Return the parts of start..stop that lie in some of the ranges, in order and without overlaps.

    >>> merged_ranges([(4, 9), (0, 2), (1, 5)], 1, 7)
    [(1, 7)]
    >>> merged_ranges([(5, 9), (0, 2)], 1, 7)
    [(1, 2), (5, 7)]
    """
    merged: list[tuple[int, int]] = []
    for low, high in sorted((max(low, start), min(high, stop)) for low, high in ranges):
        if low >= high:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


class Source(Protocol):
    """The data of a call, as the driver holds it."""

    def handles(self) -> Any:
        """Return the runtime's own references to the shards, in order."""


class Needs(Protocol):
    """Says which rows of a source a rank needs, so that a runtime may leave the others where they are."""

    @property
    def workers(self) -> int:
        """The number of ranks that need rows: the first ones."""

    def __call__(self, count: int, rank: int) -> tuple[int, int]:
        """Return start and stop of the rows that a rank needs, of a source with `count` rows."""


class Delivery(Protocol):
    """A source on its way to the ranks: pickled with the call, opened once on every rank."""

    def open(self, context: RankContext) -> Sequence[Handle]:
        """Return the shards, in order."""


@dataclass(frozen=True)
class Direct:
    """A delivery whose handles travel with the call itself."""

    handles: Sequence[Handle]

    def open(self, context: RankContext) -> Sequence[Handle]:
        return self.handles


@dataclass(frozen=True)
class Meeting:
    """Where the driver listens and the secret that lets a rank in."""

    host: str
    port: int
    key: bytes


class Launcher(ABC):
    """Starts n rank processes on one runtime, reports which of them died, and ends them.

    Each process runs :func:`orca.launch.rank.serve` with its rank and the meeting's address. Everything after that
    (calls, events, heartbeats, failures) is the gang's business.

    One call goes through `begin`, `start` unless the ranks are running, and `finish`.
    """

    runtime: str = ""
    warm: bool = True
    """Whether the processes outlive one call. If not, the gang starts new ones for each call."""

    asks: bool = False
    """Whether the runtime may lose idle ranks without notice, so that they are asked for an answer before a call."""

    regain_seconds: float = 10.0
    """How long a run that can do with fewer workers waits for slots that were lost to come back."""

    servers: int = 0
    """How many of the last ranks only serve the others, which the gang sets before `start`: they take no slot."""

    resources: Resources = Resources()
    """What each worker needs, set by `require`."""

    reserves: ClassVar[bool] = False
    """Whether the runtime gives each worker the resources that it needs. If not, naming any is refused."""

    bind: str = "127.0.0.1"
    """The address on which the driver listens for its ranks."""

    @abstractmethod
    def slots(self, wanted: int = 0) -> int:
        """Return how many workers, with their resources, can run at once.

        A young cluster may be given a moment to reach `wanted`.
        """

    @abstractmethod
    def start(self, world: int, meeting: Meeting) -> None:
        """Start `world` processes; return without waiting for them."""

    @abstractmethod
    def deaths(self) -> dict[int, str]:
        """Return the ranks whose process is known to have ended, with the reason in words."""

    @abstractmethod
    def stop(self, hellos: Mapping[int, Hello], patience: float) -> None:
        """End every process: wait `patience` seconds for it to exit, then use force; free what was reserved."""

    def require(self, resources: Resources) -> None:
        """Set what each worker needs, before anything else."""
        self.resources = resources

    def obstacle(self, workers: int) -> str:
        """Say, with numbers, why this many workers cannot start, and what to do; return an empty text if they can."""
        if self.resources.named and not self.reserves:
            return f"the {self.runtime} runtime reserves no resources. Leave out resources_per_worker= and use_gpu=."
        slots = self.slots(workers)
        if workers <= slots:
            return ""
        has = f"has {slots} slot{'s' if slots != 1 else ''}"
        if self.resources.named:
            has = f"has room for {slots} such worker{'s' if slots != 1 else ''}{self.inventory()}"
        return f"the {self.runtime} runtime {has}. {self.advice(workers)}"

    def inventory(self) -> str:
        """Say which resources there are, after a colon; empty if nobody knows."""
        return ""

    def lost(self) -> dict[int, str]:
        """Return ranks that the runtime has lost, with the reason, although they may still be connected.

        Ray, for example, can no longer reach a worker whose raylet has died.
        """
        return {}

    def room(self) -> int:
        """Return how many workers could run at this moment, those of this gang included.

        Unlike `slots` it does not wait, and leaves out what has just been lost.
        """
        return self.slots()

    def give_up_lost(self) -> None:
        """Keep the runtime from starting workers where `room` finds none, although it has not noticed the loss yet."""

    def advice(self, world: int) -> str:
        """Say what to do when `world` workers do not fit into the slots."""
        return f"Use workers={self.slots()} or fewer."

    def preparing(self) -> bool:
        """Whether the runtime still computes the data, so that the ranks cannot have started yet."""
        return False

    def tail(self, rank: int) -> list[str]:
        """Return the last lines that the rank wrote, where the runtime keeps them (native code writes only there)."""
        return []

    def begin(self, sources: Mapping[str, Source], needs: Mapping[str, Needs]) -> Mapping[str, Delivery]:
        """Reserve what one call needs, before `start` if the ranks are not running; return the sources' deliveries.

        A rank asks a delivery only for the rows that `needs` names for it, all rows of a source without an entry.
        """
        return {name: Direct(source.handles()) for name, source in sources.items()}

    def finish(self) -> None:
        """Undo what `begin` did; a reservation may be kept for a moment, for the next call."""

    def rest(self) -> None:
        """Free what an idle gang still reserves."""
