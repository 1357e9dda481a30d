"""Spark DataFrames and RDDs in and out of shards: Arrow batches per partition, never row by row."""

from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from orca.errors import ColumnError, DataError, OrcaError, TransformError, suggest
from orca.shards.engines.spark_arrays import kinds_of, plain_column, sent
from orca.shards.engines.spark_reporting import reporting
from orca.shards.feed import InMemory
from orca.shards.packing import pack, pieces, read_file, unpack
from orca.shards.transform_errors import step_error
from orca.shards.tree import join_rows, kind_of, length_of, take_rows, tree_map

FED = "target int, source string, place long, shard binary"
"""What travels to the ranks: the rank that receives it first, the source's name, its place there, the shard."""

_PLACE_BITS = 20
"""Bits for the place of a shard within its partition; the partition's number stands above them."""

LIMIT = (2 << 30) - (64 << 20)
"""Spark moves a record as one Java array, which cannot be larger than 2 GB."""


def plain_columns(frame: Any, columns: Sequence[str] | None = None) -> Any:
    """The chosen columns, with ML vectors turned into arrays by Spark itself."""
    kinds = kinds_of(frame)
    wanted = list(columns) if columns is not None else list(frame.columns)
    for name in wanted:
        if name not in kinds:
            known = ", ".join(kinds)
            raise ColumnError(f"{name!r} is not in the DataFrame. Columns: {known}." + suggest(name, list(kinds)))
    return frame.select([plain_column(name, kinds[name]).alias(name) for name in wanted])


_first_rows: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], Any]] = weakref.WeakKeyDictionary()


def first_rows(frame: Any, columns: Sequence[str], count: int) -> Any:
    """The first rows as an Arrow table of these columns, here; a frame that was asked before answers without a job."""
    known = _first_rows.setdefault(frame, {})
    asked = (*columns, count)
    found = known.get(asked)
    if found is None:
        found = plain_columns(frame, columns).limit(count).toArrow()
        if found.num_rows:  # a table without rows may get some
            known[asked] = found
    return found


def add_columns(
    frame: Any, inputs: Sequence[str], compute: Callable[[Iterator[Any]], Iterator[Any]], like: Any = None
) -> Any:
    """The frame with further columns that `compute` makes of Arrow tables of the input columns, one after another.

    Spark sends only the inputs to Python, batch by batch, when the result is needed. `like` is a table such as
    `compute` gives; without it one row is computed here to learn its types.
    """
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if like is None:
        sample = first_rows(frame, inputs, 1)
        if not sample.num_rows:
            raise DataError("The DataFrame has no rows, so that the form of its predictions cannot be known.")
        with reported():
            like = next(compute(iter([sample])))
    made = from_arrow_schema(like.schema)
    schema = to_arrow_schema(made)
    frame = _by_rows(frame)
    columns, received = sent(frame, inputs)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        rows: deque[int] = deque()

        def tables() -> Iterator[Any]:
            for given in batches:
                table = received(given if isinstance(given, tuple) else [given])
                rows.append(table.num_rows)
                if table.num_rows:
                    yield table

        def empty() -> Iterator[Any]:
            while rows and not rows[0]:
                rows.popleft()
                yield _one_column(schema.empty_table(), schema)

        with reported():
            for result in compute(tables()):
                _keep_out_of_collections()
                yield from empty()
                rows.popleft()
                yield _one_column(result.cast(schema), schema)
            yield from empty()

    # A new name, so that columns of the frame called like an output can make way for it.
    place = "orca outputs"
    kind = made.fields[0].dataType if len(made.fields) == 1 else made
    with warnings.catch_warnings():
        # Spark would like type hints, which a function of any number of columns cannot have.
        warnings.simplefilter("ignore", UserWarning)
        call = functions.arrow_udf(run, kind, functions.ArrowUDFType.SCALAR_ITER)(*columns)
    found = frame.select("*", call.alias(place))
    outputs = [
        functions.col(f"`{place}`" if len(made.fields) == 1 else f"`{place}`.`{field.name}`").alias(field.name)
        for field in made.fields
    ]
    others = [functions.col(f"`{name}`") for name in frame.columns if name not in set(made.names)]
    return reporting(found.select(*others, *outputs))


def map_tables(
    frame: Any, inputs: Sequence[str], compute: Callable[[Iterator[Any]], Iterator[Any]], schema: Any
) -> Any:
    """Return a lazy frame of what `compute` makes of the Arrow tables of each partition, with any number of rows.

    Spark sends only the input columns to Python. `schema` is the Arrow schema of the results.
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    made = from_arrow_schema(schema)
    expected = to_arrow_schema(made)
    frame = _by_rows(frame)
    columns, received = sent(frame, inputs)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        with reported():
            for result in compute(received(batch.columns) for batch in batches if batch.num_rows):
                _keep_out_of_collections()
                yield from result.cast(expected).to_batches()

    numbered = [column.alias(str(number)) for number, column in enumerate(columns)]
    return frame.select(numbered).mapInArrow(run, made)


def _by_rows(frame: Any) -> Any:
    """The same frame; one with types of users, such as ML vectors, is read row by row.

    Spark passes the columns of a file to Python in batches of columns, which cannot hold such types: it would fail.
    """
    from pyspark.sql import functions

    if '"udt"' not in frame.schema.json():
        return frame
    # True for every row; but Spark does not know, and evaluates it row by row.
    return frame.filter(functions.spark_partition_id() >= 0)


@contextmanager
def reported() -> Iterator[None]:
    """Raise what a model raises as a `TransformError` with the number of Spark's partition, or 0 in this process."""
    from pyspark import TaskContext

    try:
        yield
    except TransformError:
        raise
    except Exception as error:
        task = TaskContext.get()
        if task is None and isinstance(error, OrcaError):
            raise
        raise step_error(0 if task is None else task.partitionId(), error) from error


@cache
def _keep_out_of_collections() -> None:
    """Once in a worker: Spark looks for garbage after each task, and what the first one imported and made is none."""
    gc.collect()
    gc.freeze()


def _one_column(table: Any, schema: Any) -> Any:
    """A table as one array: its only column, or a struct of them all."""
    import pyarrow as pa

    columns = [
        column.combine_chunks() if isinstance(column.combine_chunks(), pa.Array) else pa.concat_arrays(column.chunks)
        for column in table.columns
    ]
    return columns[0] if len(schema) == 1 else pa.StructArray.from_arrays(columns, fields=list(schema))


def frame_to_parts(frame: Any, columns: Sequence[str] | None, convert: Callable[[Any], Any]) -> Any:
    """An RDD of packed shards, one per partition; `convert` turns a partition's Arrow table into a shard."""
    return _packed(frame, columns, convert, None).rdd.map(lambda row: bytes(row[0]))


def _packed(frame: Any, columns: Sequence[str] | None, convert: Callable[[Any], Any], chunk_bytes: int | None) -> Any:
    """A DataFrame with one packed shard per row."""
    from pyspark.sql.pandas.types import to_arrow_schema

    plain = plain_columns(frame, columns)
    # mapInArrow hands timestamps over in the session's time zone.
    schema = to_arrow_schema(plain.schema, timezone=frame.sparkSession.conf.get("spark.sql.session.timeZone"))
    ways, received = sent(frame, plain.columns)

    def shards(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        tables = (received(batch.columns) for batch in batches)
        for table in _tables(tables, schema, chunk_bytes):
            blob = pack(convert(table))
            if len(blob) > LIMIT:
                raise DataError(
                    f"One partition of the DataFrame holds {len(blob) / 2**30:.1f} GB. Cut it smaller with "
                    "df.repartition(n) first: Spark cannot move more than 2 GB in one piece."
                )
            yield pa.RecordBatch.from_arrays([pa.array([blob], pa.binary())], names=["shard"])

    numbered = [way.alias(str(number)) for number, way in enumerate(ways)]
    return frame.select(numbered).mapInArrow(shards, "shard binary")


def _tables(tables: Iterator[Any], schema: Any, chunk_bytes: int | None) -> Iterator[Any]:
    """A partition's tables as one, or as several of about `chunk_bytes`; at least one, if empty."""
    import pyarrow as pa

    held: list[Any] = []
    size = 0
    given = False
    for table in tables:
        held.append(table)
        size += table.nbytes
        if chunk_bytes is not None and size >= chunk_bytes:
            yield pa.concat_tables(held)
            held, size, given = [], 0, True
    if held or not given:
        yield pa.concat_tables(held) if held else schema.empty_table()


class PackedFiles:
    """Files that hold one packed shard each."""

    def open(self, path: str) -> InMemory:
        """Map a file."""
        return InMemory(read_file(path))

    def cut(self, path: str, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield some rows of a file as a packed shard, in pieces."""
        return pieces(tree_map(np.ascontiguousarray, take_rows(read_file(path), start, stop)))


def _partitions(frame: Any) -> int | None:
    """Return the number of a DataFrame's partitions; None if Spark decides that only while it computes them."""
    query = frame._jdf.queryExecution()
    if "Exchange" in query.executedPlan().toString():
        return None
    return int(query.toRdd().getNumPartitions())


@dataclass(frozen=True)
class PackedFrame:
    """Packed shards as the binary column "shard" of a DataFrame, on their way to the ranks."""

    rows: Any
    files = PackedFiles()

    def frame(self, name: str, readers: int, whole: bool = False) -> Any:
        """Return the shards as rows (target, source, place, shard), for the first `readers` ranks."""
        from pyspark.sql import functions

        place = functions.monotonically_increasing_id()
        count = _partitions(self.rows)
        # Consecutive partitions go to one rank: ranks need consecutive rows.
        target = place % readers if count is None else functions.spark_partition_id() * readers / count
        return self.rows.select(
            target.cast("int").alias("target"),
            functions.lit(name).alias("source"),
            place.alias("place"),
            "shard",
        )

    def handles(self) -> PackedFrame:
        """Return this object: it is both the source of a call and what its launcher needs of it."""
        return self

    def release(self) -> None:
        """Do nothing: Spark computes the rows when a stage reads them and keeps none."""


def _by_target(record: bytes, index: int, count: int, readers: int) -> Iterator[tuple[int, bytes]]:
    """Yield a shard, one of `count` of about the same size, in the pieces that different ranks will need."""
    first, last = index * readers // count, ((index + 1) * readers - 1) // count
    if first == last:
        yield first, record
        return
    shard = unpack(record)
    rows = length_of(shard)
    inner = [rows * (target * count - index * readers) // readers for target in range(first + 1, last + 1)]
    for target, (start, stop) in enumerate(itertools.pairwise([0, *inner, rows]), first):
        if start < stop or target == first:
            yield target, pack(tree_map(np.ascontiguousarray, take_rows(shard, start, stop)))


@dataclass(frozen=True)
class PackedRecords:
    """Packed shards as the records of an RDD."""

    records: Any
    from_driver: bool = False
    """Whether the driver sends the records with the tasks, so that nothing is computed in them."""
    files = PackedFiles()

    def frame(self, name: str, readers: int, whole: bool = False) -> Any:
        """Return the shards as rows (target, source, place, shard), for the first `readers` ranks."""
        count = self.records.getNumPartitions()

        def tagged(index: int, records: Iterator[bytes]) -> Iterator[tuple[int, str, int, bytearray]]:
            # Consecutive partitions go to one rank: ranks need consecutive rows.
            if whole:
                split = ((index * readers // count, record) for record in records)
            else:
                split = (piece for record in records for piece in _by_target(record, index, count, readers))
            for place, (target, record) in enumerate(split):
                yield target, name, (index << _PLACE_BITS) + place, bytearray(record)

        rows = self.records.mapPartitionsWithIndex(tagged)
        if self.from_driver and count > readers:
            # One task sends what one rank needs, so that Spark starts the rank where the task has run. With a task
            # per shard, half of the rows would travel twice.
            rows = rows.coalesce(readers)
        return _session().createDataFrame(rows, FED)


def pack_frame(frame: Any, columns: Sequence[str], convert: Callable[[Any], Any], chunk_bytes: int) -> PackedFrame:
    """Cut a DataFrame's partitions into packed shards of about `chunk_bytes`, so that none is held as a whole."""
    return PackedFrame(_packed(frame, columns, convert, chunk_bytes))


def _session() -> Any:
    """The session to make frames with: one is active for a thread only, and a thread of the user's may have none."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def parts_to_frame(parts: Any, schema: Any) -> Any:
    """A DataFrame from an RDD of packed Arrow tables."""
    from pyspark.sql.pandas.types import from_arrow_schema

    session = _session()
    spark_schema = from_arrow_schema(schema)

    def tables(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for blob in batch.column(0):
                yield from unpack(blob.as_buffer()).cast(schema).to_batches()

    packed = session.createDataFrame(parts.map(lambda blob: (bytearray(blob),)), "shard binary")
    return packed.mapInArrow(tables, spark_schema)


def rdd_to_parts(rdd: Any) -> Any:
    """An RDD of packed shards: the records of a partition, stacked; frames and tables are joined."""

    def stacked(records: Iterator[Any]) -> Iterator[bytes]:
        found = list(records)
        if not found:
            yield pack(None)
        elif kind_of(found[0]) in ("frame", "table"):
            yield pack(join_rows(found))
        else:
            yield pack(tree_map(lambda *values: np.stack(values), *found))

    packed = rdd.mapPartitions(stacked)
    empty = pack(None)
    first = packed.filter(lambda blob: blob != empty).take(1)
    if not first:
        raise DataError("The RDD has no records.")
    # An empty partition becomes a shard without rows, in the form of the others.
    no_rows = pack(take_rows(unpack(first[0]), 0, 0))
    return packed.map(lambda blob: no_rows if blob == empty else blob)
