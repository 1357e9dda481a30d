"""Spark DataFrames: new columns are lazy, rows cross to Python as Arrow batches, arrays as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orca.errors import ArgumentError
from orca.shards.engines.spark_arrays import kinds_of, sent
from orca.shards.engines.spark_frames import add_columns, map_tables, reported
from orca.shards.engines.spark_reporting import reporting
from orca.tensorframes.arrow_cells import joined_shapes
from orca.tensorframes.cells import Cell, Column, Shape, merged, spark_shape
from orca.tensorframes.frames.base import Frame
from orca.tensorframes.frames.tables import shapes_in
from orca.tensorframes.steps import MapStep, ReduceStep

SHAPE = "orca.shape"
"""The key of a column's metadata with the shape of its cells; -1 stands for any size."""
_DTYPES = {
    "boolean": "bool", "byte": "int8", "short": "int16", "integer": "int32", "long": "int64", "float": "float32",
    "double": "float64", "string": "string", "varchar": "string", "char": "string", "binary": "binary",
}  # fmt: skip
_VECTOR = "vectorudt"


class SparkFrame(Frame):
    """A Spark DataFrame."""

    lazy = True

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in type(data).__mro__
        )

    def columns(self) -> dict[str, Column]:
        return {field.name: _column(field) for field in self.data.schema.fields}

    def map(self, step: MapStep) -> Any:
        step = step.on_threads(1)
        like = spark_schema(step.schema()).empty_table()
        # A program may read no column, but the number of rows has to cross.
        inputs = step.columns or self.data.columns[:1]
        if step.trim:
            return reporting(map_tables(self.data, inputs, step.tables, like.schema))
        frame = add_columns(self.data, inputs, step.tables, like)
        from pyspark.sql import functions

        # The new columns come first; names may contain dots.
        return frame.select([functions.col(f"`{name}`") for name in (*like.column_names, *self.data.columns)])

    def reduce(self, step: ReduceStep) -> list[Any]:
        step = step.on_threads(1)
        schema = spark_schema(step.schema())
        partial = reporting(map_tables(self.data, step.columns, step.tables, schema))
        return [partial.toArrow().cast(step.schema())]

    def aggregate(self, step: ReduceStep) -> Any:
        return SparkGroups(self.data.groupBy(*(f"`{name}`" for name in step.keys))).aggregate(step)

    def shapes(self) -> dict[str, Shape]:
        names = [name for name, column in self.columns().items() if column.cell is not None and column.cell.shape]
        found: dict[str, Shape | None] = dict.fromkeys(names)
        if names:
            import pyarrow as pa

            schema = pa.schema([(name, pa.list_(pa.int64())) for name in names])
            table = reporting(map_tables(self.data, names, _shape_rows, schema)).toArrow()
            for row in table.to_pylist():
                for name, sizes in row.items():
                    found[name] = joined_shapes(found[name], tuple(None if size < 0 else size for size in sizes))
        scalars = {name: () for name, column in self.columns().items() if column.cell and not column.cell.shape}
        unknown = {name: column.cell.shape for name, column in self.columns().items() if column.cell is not None}
        return {**scalars, **{name: unknown[name] if shape is None else shape for name, shape in found.items()}}

    def with_shapes(self, shapes: Mapping[str, Shape]) -> Any:
        frame = self.data
        fields = {field.name: field for field in frame.schema.fields}
        for name, shape in shapes.items():
            frame = frame.withMetadata(name, {**fields[name].metadata, SHAPE: spark_shape(shape)})
        return frame


def _column(field: Any) -> Column:
    kind, depth = field.dataType, 0
    described = kind.simpleString()
    while kind.typeName() == "array":
        kind, depth = kind.elementType, depth + 1
    if kind.typeName() == _VECTOR and not depth:
        cell: Cell | None = Cell("float64", (None,))
    else:
        dtype = _DTYPES.get(kind.typeName())
        cell = None if dtype is None else Cell(dtype, (None,) * depth)
    known = field.metadata.get(SHAPE)
    if cell is not None and known is not None and len(known) == len(cell.shape):
        cell = Cell(cell.dtype, merged(cell.shape, tuple(None if size < 0 else size for size in known)) or ())
    return Column(field.name, cell, described, field.nullable)


def spark_schema(schema: Any) -> Any:
    """Return an Arrow schema with the types that Spark has: those that it lacks become the next wider ones."""
    import pyarrow as pa

    wider = {"uint8": pa.int16(), "uint16": pa.int32(), "uint32": pa.int64(), "halffloat": pa.float32()}

    def changed(kind: Any, name: str) -> Any:
        if hasattr(kind, "value_field"):
            return pa.list_(changed(kind.value_type, name))
        if str(kind) == "uint64":
            raise ArgumentError(f"The result {name!r} has dtype uint64, which Spark lacks. Cast it to int64.")
        return wider.get(str(kind), kind)

    return pa.schema([(field.name, changed(field.type, field.name)) for field in schema])


def _shape_rows(tables: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    found: dict[str, Shape] = {}
    for table in tables:
        if table.num_rows:
            found = {name: joined_shapes(found.get(name), shape) for name, shape in shapes_in(table).items()}
    if found:
        yield pa.table({name: pa.array([spark_shape(shape)], pa.list_(pa.int64())) for name, shape in found.items()})


class SparkGroups:
    """What ``DataFrame.groupBy`` returns."""

    def __init__(self, groups: Any) -> None:
        self.groups = groups
        self.frame = groups._df

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("pyspark.sql") and base.__name__ == "GroupedData" for base in type(data).__mro__
        )

    def keys(self) -> list[str]:
        """Return the names of the keys."""
        return list(self.groups.count().columns[:-1])

    def aggregate(self, step: ReduceStep) -> Any:
        """Return one row per key; a group is read batch by batch."""
        from pyspark.sql import functions
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructField, StructType

        step = step.on_threads(1)
        kinds = {field.name: field.dataType for field in self.groups.count().schema.fields}
        columns, received = sent(self.frame, step.columns)
        values = [column.alias(f"value {number}") for number, column in enumerate(columns)]
        if set(step.keys) <= set(kinds_of(self.frame)):
            # Only these columns cross to Python, arrays as bytes.
            names = [f"key {number}" for number in range(len(step.keys))]
            keys = [functions.col(f"`{key}`").alias(name) for key, name in zip(step.keys, names, strict=True)]
            groups = self.frame.select(*keys, *values).groupBy(*names)
            read = _Sent(received, len(names))
        else:
            groups, read = self.groups, None
        results = spark_schema(step.schema())
        fields = [StructField(name, kinds[name]) for name in step.keys] + from_arrow_schema(results).fields
        return reporting(groups.applyInArrow(_grouped(step, results, read), StructType(fields)))


class _Sent:
    """Reads the columns that cross as bytes, after those of the keys."""

    def __init__(self, received: Any, keys: int) -> None:
        self.received, self.keys = received, keys

    def __call__(self, batch: Any) -> Any:
        return self.received(batch.columns[self.keys :])


def _grouped(step: ReduceStep, results: Any, read: _Sent | None) -> Any:
    """Return the function that reduces the batches of one key."""
    import pyarrow as pa

    def reduce(key: Any, batches: Any) -> Any:
        with reported():
            tables = (pa.Table.from_batches([batch]) if read is None else read(batch) for batch in batches)
            row = step.row_of(tables)
            if row is None:
                return
            table = step.table_of([row]).cast(results)
        keys = [pa.array([value.as_py()], value.type) for value in key]
        arrays = [*keys, *(column.combine_chunks() for column in table.columns)]
        yield pa.RecordBatch.from_arrays(arrays, [*step.keys, *results.names])

    # Spark reads the annotations: an iterator of batches, so that a group need not fit into memory.
    reduce.__annotations__ = {
        "key": tuple[pa.Scalar, ...],
        "batches": Iterator[pa.RecordBatch],
        "return": Iterator[pa.RecordBatch],
    }
    return reduce
