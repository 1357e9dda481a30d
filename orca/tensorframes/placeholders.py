"""Placeholders with the dtype and the shape of a column, for graphs of TensorFlow."""

from __future__ import annotations

from typing import Any

from orca.core.arguments import check_text
from orca.errors import DataError
from orca.tensorframes.cells import TEXT
from orca.tensorframes.frames.adapting import adapt
from orca.tensorframes.schemas import column_named


def block(data: Any, col: str, tf_name: str | None = None) -> Any:
    """Return a placeholder for blocks of a column; its first size is None.

    Args:
        data: The data, as for `map_rows`.
        col: The name of the column.
        tf_name: The name of the placeholder. Default: that of the column.

    Raises:
        ColumnError: If there is no such column.
        DataError: If the column is not a tensor.
    """
    return _placeholder(data, col, tf_name, rows=False)


def row(data: Any, col: str, tf_name: str | None = None) -> Any:
    """Return a placeholder for one cell of a column.

    Args:
        data: The data, as for `map_rows`.
        col: The name of the column.
        tf_name: The name of the placeholder. Default: that of the column.

    Raises:
        ColumnError: If there is no such column.
        DataError: If the column is not a tensor.
    """
    return _placeholder(data, col, tf_name, rows=True)


def _placeholder(data: Any, col: str, tf_name: str | None, rows: bool) -> Any:
    import orca.tf1 as tf

    column = column_named(adapt(data), check_text("col", col, "the name of a column"))
    name = col if tf_name is None else check_text("tf_name", tf_name)
    if column.cell is None:
        raise DataError(f"Column {col!r} has the type {column.described}, which is not a tensor.")
    dtype = "string" if column.cell.dtype in TEXT else column.cell.dtype
    shape = column.cell.shape if rows else (None, *column.cell.shape)
    return tf.placeholder(tf.as_dtype(dtype), shape, name)
