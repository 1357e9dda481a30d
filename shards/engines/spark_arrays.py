"""Columns of a Spark DataFrame on their way from Java to Python: arrays of numbers as bytes, not value by value.

Spark writes an array into an Arrow list with one call for each value, which takes longer than all else on that way.
But Java holds most arrays as bytes already: the number of values, a bit for each that is missing, the values. So
these bytes are sent as they are, in a binary column, and become an Arrow list here. Arrays that Java holds in another
form (as the results of some functions are) go as lists in a second column, which is empty otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_NUMBERS = {"byte": "i1", "short": "i2", "integer": "i4", "long": "i8", "float": "f4", "double": "f8"}
"""Spark's names of the numbers that it holds in their own width."""
_VECTOR = "vectorudt"
_CATALYST = "org.apache.spark.sql.catalyst.expressions"


@dataclass(frozen=True)
class Received:
    """Turns the columns that Spark sends into a table of the columns that were asked for."""

    names: tuple[str, ...]
    dtypes: tuple[str | None, ...]
    """The numbers of a column that comes as bytes and lists; None for one that comes as it is."""

    def __call__(self, columns: Sequence[Any]) -> Any:
        import pyarrow as pa

        given = iter(columns)
        made = [
            next(given) if dtype is None else as_lists(next(given), next(given), np.dtype(dtype))
            for dtype in self.dtypes
        ]
        return pa.table(made, names=list(self.names))


def sent(frame: Any, names: Sequence[str]) -> tuple[list[Any], Received]:
    """What Spark has to send for these columns of the frame, and how to read it in Python.

    ML vectors become arrays.
    """
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
    """The type of each column; a schema that is asked by name looks through all of its columns for each."""
    return {field.name: field.dataType for field in frame.schema.fields}


def _dtype(kind: Any) -> str | None:
    if kind.typeName() == _VECTOR:
        return _NUMBERS["double"]
    return _NUMBERS.get(kind.elementType.typeName()) if kind.typeName() == "array" else None


def plain_column(name: str, kind: Any) -> Any:
    """A column by its name, with ML vectors turned into arrays by Spark itself."""
    from pyspark.sql import functions

    column = functions.col(f"`{name}`")
    if kind.typeName() != _VECTOR:
        return column
    from pyspark.ml.functions import vector_to_array

    return vector_to_array(column)


def _bytes_and_lists(session: Any, name: str, kind: Any) -> list[Any] | None:
    """A column of arrays as one of bytes and one of the others; None where this Spark cannot be asked for bytes."""
    from py4j.protocol import Py4JError
    from pyspark.sql import functions

    try:
        java = _Java(session._jvm)
        array = java.expression(functions.col(f"`{name}`"))
        dense: Any = functions.lit(True)
        if kind.typeName() == _VECTOR:
            # A vector is a row of its kind (1 if all values are stored), its size, the places of values, the values.
            dense = java.column(java.call(array, "getByte", "tinyint", java.expression(functions.lit(0)))) == 1
            array = java.call(array, "getArray", "array<double>", java.expression(functions.lit(3)))
        held = f"{_CATALYST}.UnsafeArrayData"
        is_held = dense & java.column(java.call(java.named(held), "isInstance", "boolean", array))
        # A copy of the array is all that its base object holds; the array itself is a piece of its row's.
        copy = java.call(array, "copy", held)
        as_bytes = functions.when(is_held, java.column(java.call(copy, "getBaseObject", "binary")))
    except (Py4JError, AttributeError, TypeError):
        return None
    # Empty and not missing: Spark takes time in proportion to the batch for each missing list.
    others = plain_column(name, kind)
    listed = "array<double>" if kind.typeName() == _VECTOR else kind
    return [as_bytes, functions.when(is_held, functions.array().cast(listed)).otherwise(others)]


class _Java:
    """Columns that call methods of the objects that Spark holds in Java."""

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

    def call(self, target: Any, method: str, gives: str, *arguments: Any) -> Any:
        """A call of a method that gives a type of Spark's, or objects of a class."""
        kind = self._objects(gives) if "." in gives else self._types.DataType.fromDDL(gives)
        return self._catalyst.objects.Invoke(
            target, method, kind, self._seq(arguments), self._seq(()), True, False, True
        )

    def named(self, name: str) -> Any:
        """A class as a value."""
        return self._catalyst.Literal(self._jvm.java.lang.Class.forName(name), self._objects("java.lang.Class"))

    def _objects(self, name: str) -> Any:
        return self._types.ObjectType(self._jvm.java.lang.Class.forName(name))

    def _seq(self, items: Sequence[Any]) -> Any:
        listed = self._jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(listed)


def as_lists(blobs: Any, others: Any, dtype: np.dtype[Any]) -> Any:
    """Arrays as Java holds them, and lists where there is no such array, as one column of lists."""
    import pyarrow.compute as pc

    if blobs.null_count == len(blobs):
        return others
    made = _lists(blobs, dtype).cast(others.type)
    return pc.if_else(blobs.is_valid(), made, others) if blobs.null_count else made


def _lists(blobs: Any, dtype: np.dtype[Any]) -> Any:
    import pyarrow as pa

    starts, data = _memory(blobs)
    words = data.view("i8")
    valid = np.asarray(blobs.is_valid()) if blobs.null_count else None
    # The first word of an array is the number of its values; a row without an array has no word.
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
    """Where each blob begins in the bytes of them all, and these bytes."""
    _, offsets, data = blobs.buffers()
    wide = "i8" if str(blobs.type) == "large_binary" else "i4"
    starts = np.frombuffer(offsets, wide)[blobs.offset : blobs.offset + len(blobs) + 1].astype("i8")
    return starts - starts[0], np.frombuffer(data, "u1")[starts[0] : starts[-1]]


def _ranges(starts: Array, lengths: Array) -> Array:
    """The numbers of all ranges that begin at `starts`, one range after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _missing(words: Array, flags: Array, counts: Array) -> Array:
    """For each value of all arrays, whether its bit is set in the flags of its array."""
    place = _ranges(np.zeros_like(counts), counts)
    bits: Array = words[np.repeat(flags, counts) + place // 64] >> (place % 64) & 1
    return bits.astype(bool)
