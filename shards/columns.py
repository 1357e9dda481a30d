"""Columns as arrays: turns Arrow columns and pandas frames into the {"x", "y"} that models are fed with.

Rules. Numbers and booleans keep their type. Decimals become float64, timestamps and dates datetime64, text a
numpy text array. Lists (also nested, also of fixed size) of one length become one array with further axes, and so
do tensors, including Ray's, with the shape of their type. A missing value becomes NaN in a float column; in any
other column it is an error, because any number in its place would be a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.errors import ColumnError, DataError, suggest
from orca.shards.tree import kind_of

Columns = str | Sequence[Any] | None


def arrow_to_numpy(column: Any, name: str) -> np.ndarray[Any, Any]:
    """Turn an Arrow column into one array, without Python objects per row.

    >>> import pyarrow
    >>> arrow_to_numpy(pyarrow.array([[1.0, 2.0], [3.0, 4.0]]), "v")
    array([[1., 2.],
           [3., 4.]])
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks != 1:
            column = column.combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                parts = [arrow_to_numpy(chunk, name) for chunk in column.chunks]
                return np.concatenate(parts) if parts else np.empty(0)
        else:
            column = column.chunk(0)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return arrow_to_numpy(column.dictionary_decode(), name)
    if isinstance(column, pa.ExtensionArray):
        return _tensors(column, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(column, name)
    if column.null_count and not pa.types.is_floating(kind) and not pa.types.is_decimal(kind):
        raise DataError(
            f"Column {name!r} ({kind}) has {column.null_count} missing values. Fill them (fillna) or drop "
            "the rows (dropna) first; only float columns may have gaps, as NaN."
        )
    if pa.types.is_decimal(kind):
        return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False))
    if pa.types.is_date(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype("M8[D]")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(str)
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        raise DataError(f"Column {name!r} is a {kind}; select its fields as columns of their own.")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _lists(column: Any, name: str) -> np.ndarray[Any, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise DataError(f"Column {name!r} has {column.null_count} rows without a list. Drop them (dropna) first.")
    if not len(column):
        return np.empty((0,))
    values = column.flatten()
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        lengths = pc.list_value_length(column)
        low, high = pc.min(lengths).as_py(), pc.max(lengths).as_py()
        if low != high:
            raise DataError(
                f"Column {name!r} has lists of {low} to {high} values; a model needs one length. Pad or truncate them."
            )
        width = low
    inner = arrow_to_numpy(values, name)
    return inner.reshape(len(column), width, *inner.shape[1:])


def _tensors(column: Any, name: str) -> np.ndarray[Any, Any]:
    """Reshape the flat storage of an extension column to the shape of its type, if it has one."""
    shape = getattr(column.type, "shape", None)
    if shape is None:
        return arrow_to_numpy(column.storage, name)
    if None in shape:
        raise DataError(
            f"Column {name!r} has tensors of several shapes; a model needs one shape. Pad or truncate them."
        )
    tensors = arrow_to_numpy(column.storage, name).reshape(len(column), *shape)
    order = list(getattr(column.type, "permutation", None) or range(len(shape)))
    if order == sorted(order):
        return tensors
    if [order[axis] for axis in order] != sorted(order):
        # Arrow's own libraries disagree whether this is the permutation or its inverse.
        raise DataError(
            f"Column {name!r} has tensors whose axes are stored in the order {order}. Store them in their own order, "
            "with numpy.ascontiguousarray."
        )
    return tensors.transpose(0, *(axis + 1 for axis in order))


def series_to_numpy(series: Any, name: str) -> np.ndarray[Any, Any]:
    """Turn a pandas column into one array by the same rules."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biufcM":
        return np.asarray(series.to_numpy())
    first = series.iloc[0] if len(series) else None
    if isinstance(first, np.ndarray) and first.dtype != object:
        shapes = {np.shape(value) for value in series}
        if len(shapes) > 1:
            raise DataError(f"Column {name!r} has entries of shapes {sorted(shapes)[:3]}; a model needs one shape.")
        return np.stack(series.to_numpy())
    import pyarrow as pa

    return arrow_to_numpy(pa.array(series, from_pandas=True), name)


def column(table: Any, name: str, argument: str) -> np.ndarray[Any, Any]:
    """Return one column of a frame, an Arrow table or a dict of arrays, as an array."""
    kind = kind_of(table)
    existing = [str(key) for key in (table.column_names if kind == "table" else table)]
    if name not in existing:
        raise ColumnError(
            f"{argument}={name!r} is not in the data. Columns: {', '.join(existing)}." + suggest(name, existing)
        )
    if kind == "table":
        return arrow_to_numpy(table.column(name), name)
    if kind == "frame":
        return series_to_numpy(table[name], name)
    return np.asarray(table[name])


def assemble(table: Any, columns: Columns, argument: str, together: bool = True) -> Any:
    """Turn columns into model inputs: one column is one array; several columns of single numbers are one matrix.

    A list inside the list is a matrix of its own, so ``[["a", "b"], "image"]`` are two inputs. With
    ``together=False`` several columns stay several inputs.
    """
    entries = [columns] if isinstance(columns, str) else list(columns or [])
    if not entries:
        raise ColumnError(f"{argument}= names no column.")
    if len(entries) == 1 and isinstance(entries[0], str):
        return column(table, entries[0], argument)
    if any(not isinstance(entry, str) for entry in entries):
        return tuple(assemble(table, entry, argument) for entry in entries)
    arrays = [column(table, name, argument) for name in entries]
    if not together:
        return tuple(arrays)
    if all(array.ndim == 1 for array in arrays):
        kind = np.result_type(*arrays)
        matrix = np.empty((len(arrays[0]), len(arrays)), kind)
        for position, array in enumerate(arrays):
            matrix[:, position] = array
        return matrix
    return tuple(arrays)


def features_and_labels(
    table: Any, feature_cols: Columns, label_cols: Columns, together: bool = True, weight_col: str | None = None
) -> Any:
    """Turn columns into ``{"x": …}``, with ``"y"`` if labels are named and ``"w"`` if a column of weights is."""
    tree = {"x": assemble(table, feature_cols, "feature_cols", together)}
    if flat(label_cols):
        tree["y"] = assemble(table, label_cols, "label_cols", together)
    if weight_col is not None:
        tree["w"] = column(table, weight_col, "sample_weight")
    return tree


def flat(columns: Columns) -> list[str]:
    """Return all names of a possibly nested list."""
    if columns is None:
        return []
    if isinstance(columns, str):
        return [columns]
    return [name for entry in columns for name in flat(entry)]
