"""Sends columns of a Spark DataFrame from Java to Python: arrays of numbers as bytes, not value by value.

Spark writes an array into an Arrow list with one call per value, which takes longer than the rest of the transfer.
But Java holds most arrays as bytes already: the number of values, a null bit for each value, the values. These bytes
are sent unchanged, in a binary column, and become an Arrow list in Python. Arrays that Java holds in another form (the
results of some functions) are sent as lists in a second column, which is empty otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_NUMBERS = {"byte": "i1", "short": "i2", "integer": "i4", "long": "i8", "float": "f4", "double": "f8"}
"""Spark's names of the numbers that it stores in their own width."""
_VECTOR = "vectorudt"
_CATALYST = "org.apache.spark.sql.catalyst.expressions"


@dataclass(frozen=True)
class Received:
    """Turns the columns that Spark sends into a table of the requested columns."""

    names: tuple[str, ...]
    dtypes: tuple[str | None, ...]
    """The dtype of a column that is sent as bytes and lists; None for one that is sent unchanged."""

    def __call__(self, columns: Sequence[Any]) -> Any:
        import pyarrow as pa

        sent_columns = iter(columns)
        arrays = [
            next(sent_columns) if dtype is None else as_lists(next(sent_columns), next(sent_columns), np.dtype(dtype))
            for dtype in self.dtypes
        ]
        return pa.table(arrays, names=list(self.names))


def sent(frame: Any, names: Sequence[str]) -> tuple[list[Any], Received]:
    """Return the columns that Spark has to send, and their reader in Python. ML vectors become arrays."""
    columns: list[Any] = []
    dtypes: list[str | None] = []
    kinds = kinds_of(frame)
    for name in names:
        kind = kinds[name]
        dtype = _dtype(kind)
        pair = None if dtype is None else _bytes_and_lists(frame.sparkSession, name, kind)
        columns += [plain_column(name, kind)] if pair is None else pair
        dtypes.append(None if pair is None else dtype)
    return columns, Received(tuple(names), tuple(dtypes))


def kinds_of(frame: Any) -> dict[str, Any]:
    """Return the type of each column, as a dict: looking up one name in a Spark schema searches all its columns."""
    return {field.name: field.dataType for field in frame.schema.fields}


def _dtype(kind: Any) -> str | None:
    if kind.typeName() == _VECTOR:
        return _NUMBERS["double"]
    return _NUMBERS.get(kind.elementType.typeName()) if kind.typeName() == "array" else None


def plain_column(name: str, kind: Any) -> Any:
    """Return a column by name; Spark itself turns ML vectors into arrays."""
    from pyspark.sql import functions

    column = functions.col(f"`{name}`")
    if kind.typeName() != _VECTOR:
        return column
    from pyspark.ml.functions import vector_to_array

    return vector_to_array(column)


def _bytes_and_lists(session: Any, name: str, kind: Any) -> list[Any] | None:
    """Return a column of arrays as one of bytes and one of lists; None if this Spark does not give access to bytes."""
    from py4j.protocol import Py4JError
    from pyspark.sql import functions

    try:
        java = _Java(session._jvm)
        array = java.expression(functions.col(f"`{name}`"))
        dense: Any = functions.lit(True)
        if kind.typeName() == _VECTOR:
            # A vector is a row of its type (1 for dense), its size, the indices of its values, and the values.
            dense = java.column(java.call(array, "getByte", "tinyint", java.expression(functions.lit(0)))) == 1
            array = java.call(array, "getArray", "array<double>", java.expression(functions.lit(3)))
        unsafe = f"{_CATALYST}.UnsafeArrayData"
        is_unsafe = dense & java.column(java.call(java.class_literal(unsafe), "isInstance", "boolean", array))
        # The base object of a copy holds only the array; that of the array itself holds the whole row.
        copy = java.call(array, "copy", unsafe)
        as_bytes = functions.when(is_unsafe, java.column(java.call(copy, "getBaseObject", "binary")))
    except (Py4JError, AttributeError, TypeError):
        return None
    # Empty, not null: for each null list Spark takes time in proportion to the batch.
    others = plain_column(name, kind)
    listed = "array<double>" if kind.typeName() == _VECTOR else kind
    return [as_bytes, functions.when(is_unsafe, functions.array().cast(listed)).otherwise(others)]


class _Java:
    """Builds columns that call methods of the Java objects in Spark's rows."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._columns = jvm.org.apache.spark.sql.classic.ExpressionUtils
        self._types = jvm.org.apache.spark.sql.types
        self._catalyst = jvm.org.apache.spark.sql.catalyst.expressions

    def expression(self, column: Any) -> Any:
        return self._columns.expression(column._jc)

    def column(self, expression: Any) -> Any:
        from pyspark.sql.classic.column import Column

        return Column(self._columns.column(expression))

    def call(self, target: Any, method: str, returns: str, *arguments: Any) -> Any:
        """Call a method that returns a Spark type, or objects of a class."""
        kind = self._objects(returns) if "." in returns else self._types.DataType.fromDDL(returns)
        return self._catalyst.objects.Invoke(
            target, method, kind, self._seq(arguments), self._seq(()), True, False, True
        )

    def class_literal(self, name: str) -> Any:
        """Return a class as a value."""
        return self._catalyst.Literal(self._jvm.java.lang.Class.forName(name), self._objects("java.lang.Class"))

    def _objects(self, name: str) -> Any:
        return self._types.ObjectType(self._jvm.java.lang.Class.forName(name))

    def _seq(self, items: Sequence[Any]) -> Any:
        java_list = self._jvm.java.util.ArrayList()
        for item in items:
            java_list.add(item)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(java_list)


def as_lists(blobs: Any, others: Any, dtype: np.dtype[Any]) -> Any:
    """Combine arrays as Java holds them, and lists where such an array is null, into one column of lists."""
    import pyarrow.compute as pc

    if blobs.null_count == len(blobs):
        return others
    lists = _lists(blobs, dtype).cast(others.type)
    return pc.if_else(blobs.is_valid(), lists, others) if blobs.null_count else lists


def _lists(blobs: Any, dtype: np.dtype[Any]) -> Any:
    import pyarrow as pa

    starts, data = _memory(blobs)
    words = data.view("i8")
    valid = np.asarray(blobs.is_valid()) if blobs.null_count else None
    # The first word of an array is the number of its values; a null row has no words.
    at = starts[:-1] // 8
    counts = words[at] if valid is None else np.where(valid, words[np.minimum(at, len(words) - 1)], 0)
    flags = (counts + 63) // 64
    if valid is None and (counts == counts[0]).all() and (np.diff(starts) == starts[1] - starts[0]).all():
        rows = data.reshape(len(blobs), -1)
        head = 8 + 8 * int(flags[0])
        values = np.ascontiguousarray(rows[:, head : head + int(counts[0]) * dtype.itemsize]).view(dtype).reshape(-1)
        missing = rows[:, 8:head].any()
    else:
        values = data.view(dtype)[_ranges((starts[:-1] + 8 + 8 * flags) // dtype.itemsize, counts)]
        missing = words[_ranges(at + 1, flags)].any()
    offsets = np.zeros(len(blobs) + 1, "i4")
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, mask=_missing(words, at + 1, counts) if missing else None)
    )


def _memory(blobs: Any) -> tuple[Array, Array]:
    """Return the start of each blob in the bytes of all blobs, and these bytes."""
    _, offsets, data = blobs.buffers()
    wide = "i8" if str(blobs.type) == "large_binary" else "i4"
    starts = np.frombuffer(offsets, wide)[blobs.offset : blobs.offset + len(blobs) + 1].astype("i8")
    return starts - starts[0], np.frombuffer(data, "u1")[starts[0] : starts[-1]]


def _ranges(starts: Array, lengths: Array) -> Array:
    """Concatenate the ranges that begin at `starts`."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _missing(words: Array, flags: Array, counts: Array) -> Array:
    """Return, for each value of all arrays, whether its null bit is set in the flags of its array."""
    position = _ranges(np.zeros_like(counts), counts)
    bits: Array = words[np.repeat(flags, counts) + position // 64] >> (position % 64) & 1
    return bits.astype(bool)
