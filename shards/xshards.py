"""XShards: a list of partitions on an engine, lazily transformed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orca.errors import ArgumentError, DataError
from orca.shards.engines.base import Engine
from orca.shards.tree import as_arrays, describe, join_rows, row_count, take_rows


class XShards:
    """Rows cut into shards that lie on this machine, in Ray's object store or in Spark.

    >>> import numpy as np
    >>> shards = XShards.partition({"x": np.arange(6.0), "y": np.arange(6)}, num_shards=2)
    >>> len(shards), shards.num_partitions()
    (6, 2)
    >>> shards.transform_shard(lambda shard: {"x": shard["x"] * 2, "y": shard["y"]}).to_numpy()["x"]
    array([ 0.,  2.,  4.,  6.,  8., 10.])
    """

    def __init__(self, engine: Engine, parts: Any, pending: tuple[Callable[[Any], Any], ...] = ()) -> None:
        self._engine = engine
        self._parts = parts
        self._pending = pending

    @staticmethod
    def partition(data: Any, num_shards: int | None = None) -> XShards:
        """Cut arrays (an ndarray or nested dicts, lists and tuples of them) into shards of even size."""
        from orca.context import current

        context = current()
        data = as_arrays(data)
        rows = row_count(data)
        if num_shards is not None and num_shards < 1:
            raise ArgumentError(f"num_shards={num_shards!r}: expected at least 1.")
        if num_shards is not None and num_shards > max(rows, 1):
            raise ArgumentError(f"num_shards={num_shards} is more than the {rows} rows. Use at most {max(rows, 1)}.")
        count = num_shards or max(1, min(context.cores, rows))
        cuts = [rows * index // count for index in range(count + 1)]
        pieces = [take_rows(data, start, stop) for start, stop in itertools.pairwise(cuts)]
        return XShards(context.engine, context.engine.put(pieces))

    @staticmethod
    def from_shards(shards: Sequence[Any]) -> XShards:
        """Take ready-made shards, of any sizes, in this order. All must have the same structure and dtypes."""
        from orca.context import current

        ready = [as_arrays(shard) for shard in shards]
        if not ready:
            raise ArgumentError("from_shards was given no shard. Give a list with at least one.")
        expected = describe(ready[0])
        for index, shard in enumerate(ready):
            row_count(shard)
            if describe(shard) != expected:
                raise DataError(f"Shard {index} has {describe(shard)}, shard 0 has {expected}. Make them alike.")
        engine = current().engine
        return XShards(engine, engine.put(ready))

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def parts(self) -> Any:
        """The engine's handle to the shards, with all pending transformations done or planned."""
        if self._pending:
            steps = self._pending
            self._parts, self._pending = self._engine.map(self._parts, _Chain(steps)), ()
        return self._parts

    def transform_shard(self, fn: Callable[..., Any], *args: Any) -> XShards:
        """Run ``fn(shard, *args)`` on every shard; nothing happens until the result is needed."""
        step = fn if not args else _Call(fn, args)
        return XShards(self._engine, self._parts, (*self._pending, step))

    def collect(self) -> list[Any]:
        """Bring all shards into this process, as a list."""
        return self._engine.gather(self.parts)

    def first(self) -> Any:
        """Bring the first shard into this process."""
        return self._engine.take(self.parts, 1)[0]

    def inspect(self, fn: Callable[[Any], Any]) -> Any:
        """Run `fn` on the first shard where it lies and return its (small) result."""
        return self._engine.inspect(self.parts, fn)

    def to_numpy(self) -> Any:
        """Bring all rows into this process as one structure of arrays."""
        return join_rows(self.collect())

    def num_partitions(self) -> int:
        return self._engine.count(self._parts)

    def shard_rows(self) -> list[int]:
        """Number of rows of each shard."""
        return self._engine.rows(self.parts)

    def to_engine(self, engine: Engine) -> XShards:
        """Move the shards to another engine; they pass through this process."""
        if engine is self._engine or engine.name == self._engine.name:
            return self
        return XShards(engine, engine.put(self.collect()))

    def free(self) -> None:
        """Give the shards up at once instead of with the last reference."""
        self._engine.free(self._parts)

    def handles(self) -> Any:
        """What a rank needs to open the shards."""
        return self._engine.handles(self.parts)

    def __len__(self) -> int:
        return sum(self.shard_rows())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.collect())

    def __repr__(self) -> str:
        return f"<XShards: {self.num_partitions()} partitions on the {self._engine.name} engine>"


class _Call:
    """A function with its further arguments bound."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn, self._args = fn, args

    def __call__(self, shard: Any) -> Any:
        return self._fn(shard, *self._args)


class _Chain:
    """Several steps in one pass over the shard."""

    def __init__(self, steps: tuple[Callable[[Any], Any], ...]) -> None:
        self._steps = steps

    def __call__(self, index: int, shard: Any) -> Any:
        for step in self._steps:
            shard = step(shard)
        return shard
