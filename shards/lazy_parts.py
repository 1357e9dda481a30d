"""The shards of an engine with their pending steps, which run in one pass when a result is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from orca.shards.engines.base import Engine, Join, Parts, Result, Shard, Split, Step
from orca.shards.steps import Chain, Guarded, StartingAt, UserStep
from orca.shards.transform_errors import one_error


class LazyParts:
    """An engine's parts and the steps still to run on them; a failing step is one `TransformError` on every engine."""

    def __init__(self, engine: Engine, parts: Parts, pending: tuple[Step, ...] = ()) -> None:
        self.engine = engine
        self.stored = parts
        self.cached = False
        self._pending = pending
        self._rows: list[int] | None = None

    @property
    def parts(self) -> Parts:
        """The engine's parts, with all pending steps done or planned."""
        if self._pending:
            with one_error():
                self.stored = self.engine.map(self.stored, Chain(self._pending))
            self._pending = ()
        return self.stored

    @property
    def count(self) -> int:
        """Number of shards."""
        return self.engine.count(self.stored)

    def rows(self) -> list[int]:
        """Return the number of rows of each shard."""
        if self._rows is None:
            with one_error():
                self._rows = self.engine.rows(self.parts)
        return self._rows

    # Keeping results

    def cache(self) -> None:
        """Compute the shards and keep them."""
        with one_error():
            self.stored = self.engine.cache(self.parts)
        self.cached = True

    def uncache(self) -> None:
        """Let the engine drop kept shards that it can recompute."""
        if self.engine.recomputes:
            self.engine.free(self.stored)
        self.cached = False

    # Bringing results into this process

    def gather(self) -> list[Shard]:
        """Bring all shards into this process."""
        with one_error():
            return self.engine.gather(self.parts)

    def take(self, count: int) -> list[Shard]:
        """Bring the first `count` shards into this process."""
        with one_error():
            return self.engine.take(self.parts, count)

    def inspect(self, fn: Callable[[Shard], Result]) -> Result:
        """Return the result of `fn` on the first shard, computed where it is stored."""
        with one_error():
            return self.engine.inspect(self.parts, fn)

    def walk(self, fn: Callable[[Shard], Result]) -> Iterator[Result]:
        """Yield the result of `fn` on one shard after another; shards that are not reached stay pending."""
        low = 0
        while low < self.count:
            high = max(self.engine.at_once, 4 * low)
            yield from self._inspect_range(fn, low, high)
            low = high

    def _inspect_range(self, fn: Callable[[Shard], Result], low: int, high: int) -> Iterator[Result]:
        if not isinstance(self.stored, list):
            with one_error():
                results = self.engine.take(self.engine.map(self.parts, lambda index, shard: fn(shard)), high)
            yield from results[low:]
            return
        self._run_until(high)
        for part in self.stored[low:high]:
            with one_error():
                result = self.engine.inspect([part], fn)
            yield result

    def _run_until(self, count: int) -> None:
        """Run the pending steps on the first `count` shards of a list; for the others they stay pending."""
        last = self._pending[0] if len(self._pending) == 1 else None
        low = last.first if isinstance(last, StartingAt) else 0
        if not self._pending or low >= count:
            return
        chain = Chain(self._pending)
        with one_error():
            computed = self.engine.map(self.stored[low:count], lambda index, shard: chain(low + index, shard))
        self.stored = [*self.stored[:low], *computed, *self.stored[count:]]
        self._pending = (StartingAt(count, last.step if isinstance(last, StartingAt) else chain),)

    # New shards from these

    def map(self, step: Step) -> LazyParts:
        """Add a step for every shard."""
        return LazyParts(self.engine, self.stored, (*self._pending, step))

    def apply(self, fn: Callable[..., Shard], *args: Any) -> LazyParts:
        """Add ``fn(shard, *args)`` as a step for every shard."""
        return self.map(UserStep(fn, args))

    def shuffle(self, split: Split, join: Join, count: int) -> LazyParts:
        """Split every shard into `count` pieces and join the j-th pieces to the new shard j."""
        with one_error():
            return LazyParts(self.engine, self.engine.shuffle(self.parts, Guarded(split), Guarded(join), count))

    def zip(self, other: LazyParts) -> LazyParts:
        """Pair these shards with those of another list of the same length."""
        moved = other.to_engine(self.engine)
        with one_error():
            return LazyParts(self.engine, self.engine.zip(self.parts, moved.parts))

    def to_engine(self, engine: Engine) -> LazyParts:
        """Move the shards to another engine; they pass through this process."""
        if engine.name == self.engine.name:
            return self
        return LazyParts(engine, engine.put(self.gather()))
