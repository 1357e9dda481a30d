"""Columns as arrays: turns Arrow columns and pandas frames into the {"x", "y"} that models are fed with.

Rules. Numbers and booleans keep their type. Decimals become float64, timestamps and dates datetime64, text a
numpy text array; none of these but decimals can be part of a matrix of numbers. Lists (also nested, also of fixed
size) of one length become one array with further axes, and so do tensors, including Ray's, with the shape of their
type. A missing value becomes NaN in a float column; in any other column it is an error, because any number in its
place would be a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.errors import ArgumentError, ColumnError, DataError, listed, suggest
from orca.shards.checks import INDEX_TEXT, short
from orca.shards.tree import as_arrays, kind_of

Columns = str | int | Sequence[Any] | None
"""A name, or a list of names, in which a list stands for a matrix. Integers are names too, as pandas has them."""


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
        if pandas_only(kind):
            raise DataError(f"Column {name!r} holds {pandas_only(kind)}; a model takes numbers. {_PERIODS}")
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
    if isinstance(dtype, np.dtype) and dtype.kind in "biufcMm":
        return np.asarray(series.to_numpy())
    _refuse_pandas_only(dtype, name)
    first = series.iloc[0] if len(series) else None
    if isinstance(first, np.ndarray) and first.dtype != object:
        shapes = {np.shape(value) for value in series}
        if len(shapes) > 1:
            raise DataError(f"Column {name!r} has entries of shapes {sorted(shapes)[:3]}; a model needs one shape.")
        return np.stack(series.to_numpy())
    import pyarrow as pa

    try:
        values = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise DataError(mixed_values(series, name)) from None
    return arrow_to_numpy(values, name)


def pandas_only(kind: Any) -> str:
    """Return what an Arrow extension type of pandas holds, such as periods; "" for another type."""
    name = str(getattr(kind, "extension_name", ""))
    return name.removeprefix("pandas.") + "s" if name.startswith("pandas.") else ""


_PERIODS = "Use numbers instead, such as the year and the month."


def _refuse_pandas_only(dtype: Any, name: str) -> None:
    """Raise for the kinds of pandas columns that have no counterpart elsewhere."""
    kind = type(dtype).__name__
    if kind == "SparseDtype":
        raise DataError(
            f"Column {name!r} is sparse ({dtype}), which is not supported. Make it dense: "
            f"frame[{name!r}].sparse.to_dense()."
        )
    if kind in ("PeriodDtype", "IntervalDtype"):
        what = kind.removesuffix("Dtype").lower()
        raise DataError(f"Column {name!r} holds {what}s ({dtype}); a model takes numbers. {_PERIODS}")


def mixed_values(series: Any, name: str) -> str:
    """Describe a column whose values have several types, or one that no array has."""
    found: dict[str, str] = {}
    for row, value in enumerate(series):
        found.setdefault(type(value).__name__, f"{type(value).__name__} (row {row}: {short(value)})")
        if len(found) > 1:
            break
    several = "values of several types" if len(found) > 1 else "values that are no numbers"
    return (
        f"Column {name!r} has {several}: {' and '.join(found.values())}; a model takes numbers. Convert it, for "
        "example with pandas.to_numeric, or leave it out of feature_cols=."
    )


def column(table: Any, name: str, argument: str) -> np.ndarray[Any, Any]:
    """Return one column of a frame, an Arrow table or a dict of arrays, as an array."""
    kind = kind_of(table)
    keys = list(table.column_names if kind == "table" else table)
    existing = [str(key) for key in keys]
    if name not in existing:
        raise ColumnError(
            f"{argument}={name!r} is not in the data. Columns: {listed(existing)}." + suggest(name, existing)
        )
    if kind in ("table", "frame"):
        check_single(name, existing, argument, "the data")
    if kind == "table":
        return arrow_to_numpy(table.column(name), name)
    if kind == "frame":
        # By position: pandas takes True and 1 for one label.
        return series_to_numpy(table.iloc[:, existing.index(name)], name)
    key = name if name in keys else keys[existing.index(name)]
    if kind_of(table[key]) == "series":
        return series_to_numpy(table[key], name)
    return np.asarray(as_arrays(table[key], f"{argument}={name!r}"))


def check_single(name: str, columns: Sequence[str], argument: str, data: str) -> None:
    """Raise if more than one column has this name."""
    if columns.count(name) > 1:
        raise DataError(
            f"{argument}={name!r} is the name of {columns.count(name)} columns of {data}. Rename or drop all but one."
        )


def assemble(table: Any, columns: Columns, argument: str, together: bool = True) -> Any:
    """Turn columns into model inputs: one column is one array; several columns of single numbers are one matrix.

    A list inside the list is a matrix of its own, so ``[["a", "b"], "image"]`` are two inputs. With
    ``together=False`` several columns stay several inputs.
    """
    entries = [columns] if _is_name(columns) else list(columns or [])  # type: ignore[arg-type]
    if not entries:
        raise ColumnError(f"{argument}= names no column.")
    if len(entries) == 1 and _is_name(entries[0]):
        return column(table, str(entries[0]), argument)
    if any(not _is_name(entry) for entry in entries):
        return tuple(assemble(table, entry, argument) for entry in entries)
    names = [str(entry) for entry in entries]
    arrays = [column(table, name, argument) for name in names]
    if not together or any(array.ndim != 1 for array in arrays):
        return tuple(arrays)
    _refuse_mixture(names, arrays)
    matrix = np.empty((len(arrays[0]), len(arrays)), np.result_type(*arrays))
    for position, array in enumerate(arrays):
        matrix[:, position] = array
    return matrix


def _refuse_mixture(names: Sequence[str], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Raise if columns of a matrix are text or times and others are not: numbers would become text."""
    groups = {"U": "U", "S": "U", "M": "M", "m": "m", "O": "O"}
    kinds = [groups.get(array.dtype.kind, "") for array in arrays]
    if len(set(kinds)) > 1:
        place = next(position for position, kind in enumerate(kinds) if kind)
        array = arrays[place]
        sample = f", such as {short(array[0])} in row 0" if len(array) else ""
        raise DataError(
            f"Column {names[place]!r} has dtype {array.dtype}{sample}, others are numbers, and all are to form one "
            f"matrix. {INDEX_TEXT}"
        )


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
    """Return all names of a possibly nested list.

    >>> flat(["a", ["b", 3]])
    ['a', 'b', '3']
    """
    if columns is None:
        return []
    if _is_name(columns):
        return [str(columns)]
    if isinstance(columns, int | bytes) or not hasattr(columns, "__iter__"):
        raise ArgumentError(f"{columns!r} is not the name of a column; expected text, or an integer as pandas has it.")
    return [name for entry in columns for name in flat(entry)]


def _is_name(entry: object) -> bool:
    return isinstance(entry, str) or (isinstance(entry, int | np.integer) and not isinstance(entry, bool))
