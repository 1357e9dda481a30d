"""The types of cells: which dtype and shape the values of a column have, and which casts keep every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.checks import check_range, first_where, short

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]
"""The shape of a cell or of a block; None stands for any size."""

TEXT = ("string", "binary")
"""The dtypes of text and of bytes; all others are names of numpy dtypes."""
_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
_SPARK_NAMES = {
    "bool": "boolean", "int8": "byte", "int16": "short", "int32": "int", "int64": "long", "uint8": "short",
    "float16": "float", "float32": "float", "float64": "double",
}  # fmt: skip
"""What `cast` is called with; dtypes that Spark lacks become the next wider one."""


@dataclass(frozen=True)
class Cell:
    """The dtype of a column's values, and the shape of each of its cells."""

    dtype: str
    shape: Shape = ()

    def __str__(self) -> str:
        return f"{self.dtype} of shape {shape_text(self.shape)}"


@dataclass(frozen=True)
class Column:
    """A column of a frame, with its type in the words of the frame; no cell if no tensor can hold its values."""

    name: str
    cell: Cell | None
    described: str
    nullable: bool = True


def shape_text(shape: Shape | None) -> str:
    """Return a shape for messages.

    >>> shape_text((None, 2)), shape_text(()), shape_text(None)
    ('[?,2]', '[]', 'unknown')
    """
    return "unknown" if shape is None else f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def merged(one: Shape | None, two: Shape | None) -> Shape | None:
    """Return the shape that both allow, or raise a ValueError.

    >>> merged((None, 2), (3, None))
    (3, 2)
    """
    if one is None or two is None:
        return two if one is None else one
    if len(one) != len(two):
        raise ValueError("ranks differ")
    for left, right in zip(one, two, strict=True):
        if left is not None and right is not None and left != right:
            raise ValueError("sizes differ")
    return tuple(right if left is None else left for left, right in zip(one, two, strict=True))


def widened(one: Shape, two: Shape) -> Shape:
    """Return the shape of cells that have one of two shapes of the same rank.

    >>> widened((3, 2), (4, 2))
    (None, 2)
    """
    return tuple(left if left == right else None for left, right in zip(one, two, strict=True))


def cell_of_arrow(kind: Any) -> Cell | None:
    """Return the cell of an Arrow type; None if no tensor can hold such values.

    >>> import pyarrow as pa
    >>> cell_of_arrow(pa.list_(pa.list_(pa.float32(), 2)))
    Cell(dtype='float32', shape=(None, 2))
    """
    import pyarrow as pa

    is_a = pa.types
    shape: list[int | None] = []
    if isinstance(kind, pa.BaseExtensionType):
        fixed = getattr(kind, "shape", None)
        inner = cell_of_arrow(kind.storage_type)
        if fixed is None or inner is None:
            return inner
        return Cell(inner.dtype, tuple(fixed))
    while is_a.is_dictionary(kind) or hasattr(kind, "value_field"):
        if not is_a.is_dictionary(kind):
            shape.append(kind.list_size if is_a.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return Cell("string", tuple(shape))
    if is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_binary_view(kind):
        return Cell("binary", tuple(shape))
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    name = names.get(str(kind), str(kind))
    return Cell(name, tuple(shape)) if name in _NUMBERS else None


def arrow_type(cell: Cell) -> Any:
    """Return the Arrow type of a column with such cells."""
    import pyarrow as pa

    kind = pa.type_for_alias(cell.dtype)
    for _ in cell.shape:
        kind = pa.list_(kind)
    return kind


def can_cast(source: str, target: str) -> bool:
    """Whether values of a dtype can be cast without a change, by type or after a look at each value.

    Integers fit other integers and floats if no value is too large; floats fit wider floats.

    >>> can_cast("int64", "int32"), can_cast("float64", "float32"), can_cast("string", "binary")
    (True, False, True)
    """
    if source in TEXT or target in TEXT:
        return source in TEXT and target in TEXT
    one, two = np.dtype(source), np.dtype(target)
    if one == two or one.kind == "b":
        return True
    if two.kind == "b":
        return False
    return one.kind in "iu" or bool(np.can_cast(one, two))


def cast_advice(column: str, target: str) -> str:
    """Return the cast that a user has to write."""
    spark = _SPARK_NAMES.get(target, target)
    return (
        f'df.withColumn("{column}", df["{column}"].cast("{spark}")) on Spark, or .astype("{target}") in pandas, if the '
        "loss is intended"
    )


def cast(array: Array, target: str, column: str, first_row: int = 0) -> Array:
    """Return an array in another dtype; raise if a value would change."""
    if target in TEXT or array.dtype == np.dtype(target):
        return array
    kind = np.dtype(target)
    label = f"Column {column!r}"
    check_range(array, target, label, first_row)
    result = array.astype(kind)
    if array.dtype.kind in "iu" and kind.kind == "f" and array.dtype.itemsize >= kind.itemsize and array.size:
        # The largest integers are rounded. Above 2^63 a comparison of integers would wrap.
        limit = 2 ** (np.finfo(kind).nmant + 1)
        large = (array > limit) | (array < -limit) if array.dtype.kind == "i" else array > limit
        if large.any():
            with np.errstate(over="ignore", invalid="ignore"):
                exact = np.array([int(value) == int(back) if np.isfinite(back) else False for value, back in
                                  zip(array[large].tolist(), result[large], strict=True)])  # fmt: skip
            if not exact.all():
                wrong = large.copy()
                wrong[large] = ~exact
                row, index = first_where(wrong, first_row)
                raise DataError(
                    f"{label} has {short(array[index])} in row {row}, which {target} cannot hold exactly. Cast the "
                    f"column first: {cast_advice(column, target)}."
                )
    return result


def spark_shape(shape: Sequence[int | None]) -> list[int]:
    """Return a shape for the metadata of a column, where -1 stands for any size."""
    return [-1 if size is None else int(size) for size in shape]
