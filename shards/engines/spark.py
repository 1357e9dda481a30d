"""Shards as the records of an RDD, one packed shard per partition; Spark recomputes what it loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orca.shards.engines.base import Engine
from orca.shards.packing import pack, unpack
from orca.shards.tree import row_count


class SparkEngine(Engine):
    """The engine of the Spark runtime. Parts are an RDD of packed shards, in order."""

    name = "spark"

    def __init__(self, session: Any) -> None:
        self._session = session

    def put(self, shards: Sequence[Any]) -> Any:
        packed = [pack(shard) for shard in shards]
        return self._session.sparkContext.parallelize(packed, max(1, len(packed)))

    def map(self, parts: Any, fn: Callable[[Any], Any]) -> Any:
        import cloudpickle

        # A broadcast travels once per executor, the closure of a task once per task.
        blob = self._session.sparkContext.broadcast(cloudpickle.dumps(fn))

        def run(records: Iterator[bytes]) -> Iterator[bytes]:
            apply = cloudpickle.loads(blob.value)
            for record in records:
                yield pack(apply(unpack(record)))

        return parts.mapPartitions(run, preservesPartitioning=True)

    def gather(self, parts: Any) -> list[Any]:
        return [unpack(record) for record in parts.collect()]

    def first(self, parts: Any) -> Any:
        return unpack(parts.first())

    def inspect(self, parts: Any, fn: Callable[[Any], Any]) -> Any:
        return parts.map(lambda record: fn(unpack(record))).first()

    def rows(self, parts: Any) -> list[int]:
        return list(parts.map(lambda record: row_count(unpack(record))).collect())

    def count(self, parts: Any) -> int:
        return int(parts.getNumPartitions())
