"""The Spark engine: shards as records of an RDD, one packed shard per partition; Spark recomputes lost ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle

from orca.core.pickling import pickled
from orca.errors import ResourceError
from orca.shards.engines.base import Engine, Join, Parts, Result, Shard, Split, Step
from orca.shards.engines.spark_frames import PackedRecords
from orca.shards.packing import pack, unpack
from orca.shards.tree import length_of


@contextmanager
def _alive() -> Iterator[None]:
    """Say what to do if Spark's Java process ends, which its client reports only as a lost connection."""
    from py4j.protocol import Py4JNetworkError

    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise ResourceError(
            "Spark's Java process on the driver has ended, most likely for lack of memory. Restart with more, such as "
            'init_orca_context(runtime="spark", memory="8g"), or spark.driver.memory in a session of your own.'
        ) from error


class SparkEngine(Engine):
    """The engine of the Spark runtime. Parts are an RDD of packed shards, one per partition, in order."""

    name = "spark"
    task_threads = 1
    shard_bytes = 32 << 20  # Java copies a record several times in transit, each time into one contiguous array
    recomputes = True

    def __init__(self, session: Any) -> None:
        self._session = session
        self._put: weakref.WeakKeyDictionary[Any, bytes | None] = weakref.WeakKeyDictionary()
        """Parts that are records of this process, with the first one if it is not large."""

    def put(self, shards: Sequence[Shard]) -> Parts:
        packed = [pack(shard) for shard in shards]
        with _alive():
            parts = self._session.sparkContext.parallelize(packed, max(1, len(packed)))
        self._put[parts] = packed[0] if packed and len(packed[0]) <= self.shard_bytes else None
        return parts

    def map(self, parts: Parts, step: Step) -> Parts:
        blob = self._ship(step)

        def run(index: int, records: Iterator[bytes]) -> Iterator[bytes]:
            function = cloudpickle.loads(blob.value)
            for record in records:
                yield pack(function(index, unpack(record)))

        return parts.mapPartitionsWithIndex(run)

    def zip(self, left: Parts, right: Parts) -> Parts:
        return left.zip(right).map(lambda pair: pack((unpack(pair[0]), unpack(pair[1]))))

    def shuffle(self, parts: Parts, split: Split, join: Join, count: int) -> Parts:
        splitter, joiner = self._ship(split), self._ship(join)

        def split_records(index: int, records: Iterator[bytes]) -> Iterator[tuple[int, tuple[int, bytes]]]:
            function = cloudpickle.loads(splitter.value)
            for record in records:
                for target, piece in enumerate(function(index, unpack(record))):
                    yield target, (index, pack(piece))

        def join_pieces(target: int, records: Iterator[tuple[int, tuple[int, bytes]]]) -> Iterator[bytes]:
            function = cloudpickle.loads(joiner.value)
            pieces = sorted((piece for _, piece in records), key=lambda piece: piece[0])
            yield pack(function(target, [unpack(blob) for _, blob in pieces]))

        pieces = parts.mapPartitionsWithIndex(split_records).partitionBy(count, lambda key: key)
        return pieces.mapPartitionsWithIndex(join_pieces)

    def gather(self, parts: Parts) -> list[Shard]:
        with _alive():
            return [unpack(record) for record in parts.collect()]

    def take(self, parts: Parts, count: int) -> list[Shard]:
        with _alive():
            return [unpack(record) for record in parts.take(count)]

    def inspect(self, parts: Parts, fn: Callable[[Shard], Result]) -> Result:
        blob = pickled(fn, "fn")
        first = self._put.get(parts)
        if first is not None:  # a task would send the whole shard to an executor
            return fn(unpack(first))
        with _alive():
            result: Result = parts.map(lambda record: cloudpickle.loads(blob)(unpack(record))).first()
        return result

    def rows(self, parts: Parts) -> list[int]:
        with _alive():
            return list(parts.map(lambda record: length_of(unpack(record))).collect())

    def count(self, parts: Parts) -> int:
        return int(parts.getNumPartitions())

    def extend(self, parts: Parts, more: Parts) -> Parts:
        return parts.union(more)

    def cache(self, parts: Parts) -> Parts:
        from pyspark import StorageLevel

        cached = parts.persist(StorageLevel.MEMORY_AND_DISK)
        with _alive():
            cached.count()
        return cached

    def free(self, parts: Parts) -> None:
        if getattr(parts, "is_cached", False):
            parts.unpersist()

    def handles(self, parts: Parts) -> PackedRecords:
        return PackedRecords(parts, from_driver=parts in self._put)

    def _ship(self, function: Callable[..., Any]) -> Any:
        # A broadcast travels once per executor, the closure of a task once per task.
        return self._session.sparkContext.broadcast(pickled(function, "fn"))
