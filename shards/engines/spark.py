"""Shards as the records of an RDD, one packed shard per partition; Spark recomputes what it loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle

from orca.errors import ResourceError
from orca.shards.engines.base import Engine, Join, Split, Step
from orca.shards.engines.spark_frames import PackedRecords
from orca.shards.packing import pack, unpack
from orca.shards.tree import length_of


@contextmanager
def _alive() -> Iterator[None]:
    """Say what to do if Spark's Java process ends meanwhile, of which its client knows no more than a lost line."""
    from py4j.protocol import Py4JNetworkError

    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise ResourceError(
            "Spark's Java process on the driver has ended, most likely for lack of memory. Start anew with more, such "
            'as init_orca_context(runtime="spark", memory="8g"), or spark.driver.memory in a session of your own.'
        ) from error


class SparkEngine(Engine):
    """The engine of the Spark runtime. Parts are an RDD of packed shards, one per partition, in order."""

    name = "spark"
    task_threads = 1
    shard_bytes = 32 << 20  # Java copies a record several times on its way, each time into one piece of its heap

    def __init__(self, session: Any) -> None:
        self._session = session

    def put(self, shards: Sequence[Any]) -> Any:
        packed = [pack(shard) for shard in shards]
        with _alive():
            return self._session.sparkContext.parallelize(packed, max(1, len(packed)))

    def map(self, parts: Any, step: Step) -> Any:
        blob = self._ship(step)

        def run(index: int, records: Iterator[bytes]) -> Iterator[bytes]:
            function = cloudpickle.loads(blob.value)
            for record in records:
                yield pack(function(index, unpack(record)))

        return parts.mapPartitionsWithIndex(run)

    def zip(self, left: Any, right: Any) -> Any:
        return left.zip(right).map(lambda pair: pack((unpack(pair[0]), unpack(pair[1]))))

    def shuffle(self, parts: Any, split: Split, join: Join, count: int) -> Any:
        cutting, joining = self._ship(split), self._ship(join)

        def cut(index: int, records: Iterator[bytes]) -> Iterator[tuple[int, tuple[int, bytes]]]:
            function = cloudpickle.loads(cutting.value)
            for record in records:
                for target, piece in enumerate(function(index, unpack(record))):
                    yield target, (index, pack(piece))

        def glue(target: int, records: Iterator[tuple[int, tuple[int, bytes]]]) -> Iterator[bytes]:
            function = cloudpickle.loads(joining.value)
            pieces = sorted((piece for _, piece in records), key=lambda piece: piece[0])
            yield pack(function(target, [unpack(blob) for _, blob in pieces]))

        return parts.mapPartitionsWithIndex(cut).partitionBy(count, lambda key: key).mapPartitionsWithIndex(glue)

    def gather(self, parts: Any) -> list[Any]:
        with _alive():
            return [unpack(record) for record in parts.collect()]

    def take(self, parts: Any, count: int) -> list[Any]:
        with _alive():
            return [unpack(record) for record in parts.take(count)]

    def inspect(self, parts: Any, fn: Callable[[Any], Any]) -> Any:
        with _alive():
            return parts.map(lambda record: fn(unpack(record))).first()

    def rows(self, parts: Any) -> list[int]:
        with _alive():
            return list(parts.map(lambda record: length_of(unpack(record))).collect())

    def count(self, parts: Any) -> int:
        return int(parts.getNumPartitions())

    def extend(self, parts: Any, more: Any) -> Any:
        return parts.union(more)

    def cache(self, parts: Any) -> Any:
        from pyspark import StorageLevel

        kept = parts.persist(StorageLevel.MEMORY_AND_DISK)
        with _alive():
            kept.count()
        return kept

    def free(self, parts: Any) -> None:
        if getattr(parts, "is_cached", False):
            parts.unpersist()

    def handles(self, parts: Any) -> PackedRecords:
        return PackedRecords(parts)

    def _ship(self, function: Callable[..., Any]) -> Any:
        # A broadcast travels once per executor, the closure of a task once per task.
        return self._session.sparkContext.broadcast(cloudpickle.dumps(function))
