"""The few verbs that a place for shards has to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

Step = Callable[[int, Any], Any]
"""A function of a shard's number and the shard."""

Split = Callable[[int, Any], list[Any]]
"""Cuts a shard (by number) into pieces, one for each new shard."""

Join = Callable[[int, list[Any]], Any]
"""Puts the pieces of a new shard (by number) together, in the order of the shards they come from."""


class Engine(ABC):
    """Keeps shards and runs functions on them. `parts` is the engine's own handle to a list of shards."""

    name: str = ""
    shard_bytes: int = 256 << 20
    """Data of the driver is cut into shards of at most about this size."""
    at_once: int = 1
    """How many shards take no longer than one."""

    task_threads: int | None = None
    """How many threads work on one shard may use; None for as many as its process was given."""

    @abstractmethod
    def put(self, shards: Sequence[Any]) -> Any:
        """Store shards that are in this process; return the parts."""

    @abstractmethod
    def map(self, parts: Any, step: Step) -> Any:
        """Run `step` on every shard where it lies; return the new parts."""

    @abstractmethod
    def zip(self, left: Any, right: Any) -> Any:
        """Pair the shards of two parts of the same length as tuples."""

    @abstractmethod
    def shuffle(self, parts: Any, split: Split, join: Join, count: int) -> Any:
        """Cut every shard into `count` pieces and make the j-th pieces of all shards the new shard j."""

    @abstractmethod
    def gather(self, parts: Any) -> list[Any]:
        """Bring all shards into this process."""

    @abstractmethod
    def take(self, parts: Any, count: int) -> list[Any]:
        """Bring the first shards into this process."""

    @abstractmethod
    def inspect(self, parts: Any, fn: Callable[[Any], Any]) -> Any:
        """Run `fn` on the first shard where it lies and bring only the result into this process."""

    @abstractmethod
    def rows(self, parts: Any) -> list[int]:
        """Number of rows of each shard."""

    @abstractmethod
    def count(self, parts: Any) -> int:
        """Number of shards."""

    def extend(self, parts: Any, more: Any) -> Any:
        """Return parts with more shards behind them."""
        return parts + more

    def cache(self, parts: Any) -> Any:
        """Compute the shards and keep them; return the parts to use from now on."""
        return parts

    def free(self, parts: Any) -> None:
        """Give the shards up at once, even if somebody still holds the parts (a traceback, a notebook)."""

    def handles(self, parts: Any) -> Any:
        """What a rank needs to open the shards."""
        return parts
