"""The few verbs that a place for shards has to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any


class Engine(ABC):
    """Keeps shards and runs functions on them. `parts` is the engine's own handle to a list of shards."""

    name: str = ""

    @abstractmethod
    def put(self, shards: Sequence[Any]) -> Any:
        """Store shards that are in this process; return the parts."""

    @abstractmethod
    def map(self, parts: Any, fn: Callable[[Any], Any]) -> Any:
        """Run `fn` on every shard where it lies; return the new parts."""

    @abstractmethod
    def gather(self, parts: Any) -> list[Any]:
        """Bring all shards into this process."""

    @abstractmethod
    def first(self, parts: Any) -> Any:
        """Bring the first shard into this process."""

    @abstractmethod
    def inspect(self, parts: Any, fn: Callable[[Any], Any]) -> Any:
        """Run `fn` on the first shard where it lies and bring only the result into this process."""

    @abstractmethod
    def rows(self, parts: Any) -> list[int]:
        """Number of rows of each shard."""

    @abstractmethod
    def count(self, parts: Any) -> int:
        """Number of shards."""

    def free(self, parts: Any) -> None:
        """Give the shards up at once, even if somebody still holds the parts (a traceback, a notebook)."""

    def handles(self, parts: Any) -> Any:
        """What a rank needs to open the shards."""
        return parts
