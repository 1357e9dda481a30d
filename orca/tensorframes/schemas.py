"""The shapes of cells: read from the rows, given by the user, and printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca.core.arguments import check_count, check_text, wrong
from orca.errors import ColumnError, DataError, listed, suggest
from orca.tensorframes.cells import Column, Shape, shape_text
from orca.tensorframes.frames.adapting import adapt
from orca.tensorframes.frames.base import Frame

_WORDS = {"float64": "double", "float32": "float", "float16": "half", "int64": "long", "int32": "int"}


def analyze(data: Any) -> Any:
    """Read all rows, and remember the shapes of the cells.

    No other function needs this. On a Spark DataFrame the shapes become metadata of the columns, so that they are known
    before rows are read; other kinds of data are returned as they are.

    Args:
        data: The data, as for `map_rows`.

    Returns:
        The data.
    """
    frame = adapt(data)
    return frame.with_shapes(frame.shapes()) if frame.lazy else data


def append_shape(data: Any, col: str, shape: Sequence[int | None]) -> Any:
    """State the shape of a column's cells, without reading them.

    Args:
        data: The data, as for `map_rows`.
        col: The name of the column.
        shape: The shape of a cell; None or -1 stands for any size.

    Returns:
        The data. A cell of another shape is an error: at the call where the rows are in this process, else when they
        are read.

    Raises:
        ColumnError: If there is no such column.
        DataError: If the cells have another rank.
    """
    frame = adapt(data)
    column = column_named(frame, check_text("col", col, "the name of a column"))
    if isinstance(shape, str | bytes) or not isinstance(shape, Sequence):
        raise wrong("shape", shape, "the shape of a cell, such as [2, None]")
    sizes: Shape = tuple(
        None if size is None or _is_open(size) else check_count("shape", size, least=0) for size in shape
    )
    if column.cell is None or len(column.cell.shape) != len(sizes):
        actual = column.described if column.cell is None else f"cells of shape {shape_text(column.cell.shape)}"
        raise DataError(f"shape={list(shape)}: column {col!r} has {actual}.")
    return frame.with_shapes({col: sizes})


def _is_open(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size == -1


def print_schema(data: Any) -> None:
    """Print the columns with the types and shapes of their blocks; "?" stands for any size.

    Args:
        data: The data, as for `map_rows`.

    >>> import pyarrow as pa
    >>> print_schema(pa.table({"y": [[1.0, 2.0], [3.0, 4.0]], "n": [1, 2]}))
    root
     |-- y: array (nullable = true) double[?,2]
     |-- n: long (nullable = true) long[?]
    """
    frame = adapt(data)
    shapes = {} if frame.lazy else frame.shapes()
    print("root")
    for name, column in frame.columns().items():
        print(f" |-- {name}: {_described(column, shapes.get(name))}")


def _described(column: Column, shape: Shape | None) -> str:
    nullable = f"(nullable = {str(column.nullable).lower()})"
    if column.cell is None:
        return f"{column.described} {nullable} <no tensor info>"
    word = _WORDS.get(column.cell.dtype, column.cell.dtype)
    actual = column.cell.shape if shape is None else shape
    return f"{'array' if column.cell.shape else word} {nullable} {word}{shape_text((None, *actual))}"


def column_named(frame: Frame, name: str) -> Column:
    """Return a column, or raise with the nearest name."""
    columns = frame.columns()
    if name not in columns:
        raise ColumnError(f"Could not find column {name!r}. Columns: {listed(columns)}." + suggest(name, columns))
    return columns[name]
