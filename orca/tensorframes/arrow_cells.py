"""Arrow columns as arrays of cells and back; messages name the column and the first row that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.shard_formats import arrow_column
from orca.tensorframes.cells import TEXT, Array, Cell, Shape, arrow_type, shape_text, widened


def plain_array(column: Any) -> Any:
    """Return a column as one Arrow array of lists, text, bytes or numbers."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            column = column.chunk(0)
        else:
            parts = [plain_array(chunk) for chunk in column.chunks]
            column = pa.concat_arrays(parts) if parts else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def refuse_nulls(column: Any, name: str, first_row: int = 0) -> None:
    """Raise if a cell, or a value inside of one, is missing."""
    if column.null_count:
        row = first_row + int(np.argmin(np.asarray(column.is_valid())))
        raise DataError(
            f"Column {name!r} is null in row {row} ({column.null_count} nulls in {len(column)} rows). Tensors have no "
            "nulls: drop these rows (dropna) or fill them (fillna) first."
        )
    layers, inner = [], column
    while hasattr(inner.type, "value_field"):
        layers.append(_offsets(inner))
        inner = plain_array(inner.flatten())
        if inner.null_count:
            row = first_row + _row(layers, int(np.argmin(np.asarray(inner.is_valid()))))
            raise DataError(
                f"Column {name!r} has a null inside of the array in row {row}. Tensors have no nulls: fill them first."
            )


def _offsets(lists: Any) -> Array:
    """Return where each list begins in the flattened values, and where the last one ends."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(lists.type):
        starts: Array = np.arange(len(lists) + 1, dtype="i8") * lists.type.list_size
    else:
        starts = np.asarray(lists.offsets)
        starts = starts - starts[0]
    return starts


def values_of(column: Any, dtype: str) -> Array:
    """Return the values of a column without lists; text as text, bytes as objects."""
    import pyarrow as pa

    if dtype == "binary":
        return np.asarray(column.cast(pa.large_binary()).to_numpy(zero_copy_only=False), dtype=object)
    if dtype == "string":
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def block_of(column: Any, name: str, cell: Cell, first_row: int = 0) -> Array:
    """Return a column as one array, whose first axis is the rows; raise if its cells differ in shape."""
    column = plain_array(column)
    if _is_tensor(column):
        refuse_nulls(column, name, first_row)
        return _tensors(column, cell)
    refuse_nulls(column, name, first_row)
    shape: list[int] = [len(column)]
    layers: list[Array] = []
    inner = column
    for depth in range(len(cell.shape)):
        starts = _offsets(inner)
        lengths = np.diff(starts)
        size = int(lengths[0]) if len(lengths) else (cell.shape[depth] or 0)
        if (lengths != size).any():
            place = int(np.argmax(lengths != size))
            row = _row(layers, place)
            raise DataError(
                f"Column {name!r} has arrays of {size} values, but of {int(lengths[place])} in row {first_row + row}: "
                "a block needs cells of one shape. Use map_rows, or pad the arrays."
            )
        layers.append(starts)
        shape.append(size)
        inner = plain_array(inner.flatten())
    array = values_of(inner, cell.dtype).reshape(shape)
    check_shape(array.shape[1:], cell, name, first_row, len(array))
    return array


def check_shape(shape: tuple[int, ...], cell: Cell, name: str, row: int, rows: int = 1) -> None:
    """Raise unless a cell has the shape that was promised."""
    if rows and any(want is not None and want != size for want, size in zip(cell.shape, shape, strict=True)):
        raise DataError(
            f"Column {name!r} has a cell of shape {shape_text(shape)} in row {row}, but its shape is given as "
            f"{shape_text(cell.shape)}. Correct it with append_shape or analyze."
        )


def _row(layers: Sequence[Array], place: int) -> int:
    for starts in reversed(layers):
        place = int(np.searchsorted(starts, place, side="right")) - 1
    return place


def _is_tensor(column: Any) -> bool:
    import pyarrow as pa

    return isinstance(column.type, pa.BaseExtensionType)


def _tensors(column: Any, cell: Cell) -> Array:
    from orca.shards.columns import arrow_to_numpy

    return arrow_to_numpy(column, "").reshape(len(column), *(size or 0 for size in cell.shape))


def groups_of(columns: Sequence[Any], names: Sequence[str], cells: Sequence[Cell], first_row: int = 0) -> Iterator[
    tuple[Array | None, list[Array]]
]:  # fmt: skip
    """Yield the rows in groups of equal cell shapes: the rows' numbers (None for all rows) and an array per column."""
    plain = [plain_array(column) for column in columns]
    for column, name in zip(plain, names, strict=True):
        refuse_nulls(column, name, first_row)
    shapes = [
        _cell_shapes(column, name, cell, first_row) for column, name, cell in zip(plain, names, cells, strict=True)
    ]
    keys = [array for array in shapes if array is not None]
    rows = len(plain[0]) if plain else 0
    if not keys or all((array == array[:1]).all() for array in keys):
        yield None, [block_of(*part, first_row) for part in zip(plain, names, cells, strict=True)]
        return
    for name, cell, array in zip(names, cells, shapes, strict=True):
        if array is not None and rows:
            _check_promise(array, name, cell, first_row)
    _, group = np.unique(np.concatenate(keys, axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    borders = np.flatnonzero(np.diff(group[order])) + 1
    for index in np.split(order, borders):
        yield index, [block_of(column.take(index), name, cell, int(index[0])) for column, name, cell in
                      zip(plain, names, cells, strict=True)]  # fmt: skip


def _check_promise(shapes: Array, name: str, cell: Cell, first_row: int) -> None:
    for axis, size in enumerate(cell.shape):
        if size is not None and (shapes[:, axis] != size).any():
            row = int(np.argmax(shapes[:, axis] != size))
            check_shape(tuple(int(one) for one in shapes[row]), cell, name, first_row + row)


def _cell_shapes(column: Any, name: str, cell: Cell, first_row: int) -> Array | None:
    """Return the shape of each cell, one row each; None for scalars and tensors of one shape."""
    if not cell.shape or _is_tensor(column):
        return None
    rows, inner, owners = len(column), column, np.arange(len(column))
    sizes = np.zeros((rows, len(cell.shape)), "i8")
    for depth in range(len(cell.shape)):
        lengths = np.diff(_offsets(inner))
        if len(lengths) and (lengths == lengths[0]).all():
            sizes[:, depth] = lengths[0]
            owners = np.repeat(owners, lengths) if depth + 1 < len(cell.shape) else owners
            inner = plain_array(inner.flatten())
            continue
        # A cell is an array only if all its parts on this level have one length.
        low = np.full(rows, np.iinfo("i8").max)
        high = np.full(rows, -1)
        np.minimum.at(low, owners, lengths)
        np.maximum.at(high, owners, lengths)
        uneven = (high >= 0) & (low != high)
        if uneven.any():
            row = int(np.argmax(uneven))
            raise DataError(
                f"Column {name!r} has a ragged array in row {first_row + row}: its parts have {int(low[row])} to "
                f"{int(high[row])} values. A cell must be a tensor: pad its parts."
            )
        sizes[:, depth] = np.maximum(high, 0)
        owners = np.repeat(owners, lengths)
        inner = plain_array(inner.flatten())
    return sizes


def shape_of(column: Any, cell: Cell) -> Shape:
    """Return the shape that all cells of a column have, with None where they differ."""
    column = plain_array(column)
    if not cell.shape or _is_tensor(column):
        return cell.shape
    shape: list[int | None] = []
    inner = column.drop_null()
    for depth in range(len(cell.shape)):
        lengths = np.unique(np.diff(_offsets(inner)))
        shape.append(int(lengths[0]) if len(lengths) == 1 else cell.shape[depth] if not len(lengths) else None)
        inner = plain_array(inner.flatten()).drop_null()
    return tuple(shape)


def column_of(values: Array | Sequence[Array], cell: Cell, name: str, first_row: int = 0) -> Any:
    """Return an Arrow column of an array, whose first axis is the rows, or of one array per row."""
    import pyarrow as pa

    kind = arrow_type(cell)
    if isinstance(values, np.ndarray):
        return _whole(values, cell, kind, name, first_row)
    if not len(values):
        return pa.array([], kind)
    arrays = [np.asarray(value) for value in values]
    for row, array in enumerate(arrays):
        _check_rank(array.ndim, cell, name, first_row + row)
    shapes = [array.shape for array in arrays]
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    column = _leaves(flat, cell.dtype, name, first_row, len(arrays))
    # From the innermost axis outwards: the lengths of all lists on that level.
    for axis in range(len(cell.shape) - 1, -1, -1):
        lengths = [shape[axis] for shape in shapes for _ in range(int(np.prod(shape[:axis])))]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("i4")
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return _cast(column, kind, name, first_row)


def _cast(column: Any, kind: Any, name: str, first_row: int) -> Any:
    """Return a column in the type that was promised at the call."""
    import pyarrow as pa

    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise DataError(
            f"The result {name!r} has the type {column.type} in the rows from {first_row}, but {kind} when the "
            f"function was tried at the call: {error}"
        ) from error


def _whole(values: Array, cell: Cell, kind: Any, name: str, first_row: int) -> Any:
    _check_rank(values.ndim - 1, cell, name, first_row)
    if cell.dtype in TEXT:
        leaves = _leaves(values.reshape(-1), cell.dtype, name, first_row, len(values))
        column = arrow_column(values, leaves)
    else:
        column = arrow_column(values if values.dtype.name != "bfloat16" else values.astype("f4"))
    return _cast(column, kind, name, first_row)


def _leaves(flat: Array, dtype: str, name: str, first_row: int, rows: int) -> Any:
    import pyarrow as pa

    if dtype not in TEXT:
        return pa.array(np.ascontiguousarray(flat.astype("f4") if flat.dtype.name == "bfloat16" else flat))
    if dtype == "binary":
        return pa.array(flat.tolist(), pa.binary())
    values = [value.decode(errors="surrogateescape") if isinstance(value, bytes) else value for value in flat.tolist()]
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, UnicodeEncodeError):
        wrong = [number for number, value in enumerate(values) if not _is_utf8(value)]
        place = wrong[0] * rows // max(1, len(values)) if wrong else 0
        raise DataError(
            f"The result {name!r} is not text in UTF-8 in row {first_row + place}. Cast the string column to binary to "
            "have bytes as the result."
        ) from None


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_rank(rank: int, cell: Cell, name: str, row: int) -> None:
    if rank != len(cell.shape):
        raise DataError(
            f"The result {name!r} has rank {rank} in row {row}, but rank {len(cell.shape)} was expected: a column has "
            "arrays of one rank."
        )


def joined_shapes(one: Shape | None, two: Shape) -> Shape:
    """Return the shape of the cells of two parts of a column; the first may have no rows."""
    return two if one is None else widened(one, two)
