"""The contract of an engine: a place that stores shards and runs functions on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")

Shard: TypeAlias = Any
"""One shard: arrays (also nested in dicts, lists and tuples), a DataFrame, an Arrow table or any picklable object."""

Parts: TypeAlias = Any
"""An engine's own handle to a list of shards: files, object references or an RDD."""

Step = Callable[[int, Shard], Shard]
"""Turns a shard, given its index, into a new shard."""

Split = Callable[[int, Shard], list[Shard]]
"""Splits a shard, given its index, into pieces, one for each new shard."""

Join = Callable[[int, list[Shard]], Shard]
"""Joins the pieces of a new shard, given its index; the pieces are in the order of the shards they come from."""


class Engine(ABC):
    """Stores shards and runs functions on them. `parts` is the engine's own handle to a list of shards."""

    name: str = ""
    shard_bytes: int = 256 << 20
    """Approximate upper limit for the size of shards that the driver's data is split into."""
    at_once: int = 1
    """Number of shards that take no longer than one."""
    task_threads: int | None = None
    """Number of threads that work on one shard may use; None for as many as its process may."""
    recomputes: bool = False
    """Whether each use recomputes parts that are not cached. Freeing cached parts then loses nothing."""

    @abstractmethod
    def put(self, shards: Sequence[Shard]) -> Parts:
        """Store shards of this process and return their parts."""

    @abstractmethod
    def map(self, parts: Parts, step: Step) -> Parts:
        """Run `step` on every shard where it is stored and return the new parts."""

    @abstractmethod
    def zip(self, left: Parts, right: Parts) -> Parts:
        """Pair the shards of two parts of the same length as tuples."""

    @abstractmethod
    def shuffle(self, parts: Parts, split: Split, join: Join, count: int) -> Parts:
        """Split every shard into `count` pieces and join the j-th pieces of all shards to the new shard j."""

    @abstractmethod
    def gather(self, parts: Parts) -> list[Shard]:
        """Bring all shards into this process."""

    @abstractmethod
    def take(self, parts: Parts, count: int) -> list[Shard]:
        """Bring the first `count` shards into this process."""

    @abstractmethod
    def inspect(self, parts: Parts, fn: Callable[[Shard], Result]) -> Result:
        """Run `fn` on the first shard where it is stored and bring only the result into this process."""

    @abstractmethod
    def rows(self, parts: Parts) -> list[int]:
        """Return the number of rows of each shard."""

    @abstractmethod
    def count(self, parts: Parts) -> int:
        """Return the number of shards."""

    def extend(self, parts: Parts, more: Parts) -> Parts:
        """Return parts with more shards after them."""
        return parts + more

    def cache(self, parts: Parts) -> Parts:
        """Compute the shards, keep them and return the parts to use from now on."""
        return parts

    def free(self, parts: Parts) -> None:
        """Release the shards now, even if something (a traceback, a notebook) still refers to the parts."""

    def handles(self, parts: Parts) -> Any:
        """Return what a rank needs to open the shards."""
        return parts
