"""An engine inside one process: shards in its memory, for data that is created on a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orca.shards.engines.base import Engine, Join, Result, Shard, Split, Step
from orca.shards.feed import InMemory


class MemoryEngine(Engine):
    """Stores nothing and runs functions in place."""

    name = "memory"

    def put(self, shards: Sequence[Shard]) -> list[InMemory]:
        return [InMemory(shard) for shard in shards]

    def map(self, parts: list[InMemory], step: Step) -> list[InMemory]:
        return [InMemory(step(index, part.load())) for index, part in enumerate(parts)]

    def zip(self, left: list[InMemory], right: list[InMemory]) -> list[InMemory]:
        return [InMemory((one.load(), other.load())) for one, other in zip(left, right, strict=True)]

    def shuffle(self, parts: list[InMemory], split: Split, join: Join, count: int) -> list[InMemory]:
        pieces = [split(index, part.load()) for index, part in enumerate(parts)]
        return [InMemory(join(index, [piece[index] for piece in pieces])) for index in range(count)]

    def gather(self, parts: list[InMemory]) -> list[Shard]:
        return [part.load() for part in parts]

    def take(self, parts: list[InMemory], count: int) -> list[Shard]:
        return [part.load() for part in parts[:count]]

    def inspect(self, parts: list[InMemory], fn: Callable[[Shard], Result]) -> Result:
        return fn(parts[0].load())

    def rows(self, parts: list[InMemory]) -> list[int]:
        return [part.rows for part in parts]

    def count(self, parts: list[InMemory]) -> int:
        return len(parts)
