"""Column types of frames that were read separately: unified, or refused with the names of both files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import DataError, suggest
from orca.shards.frames import Frame, pandas

OBJECT = np.dtype(object)
_EXACT = 2**53
"""Larger integers are not exact as float64."""


@dataclass(frozen=True)
class Kind:
    """The type of a column: its group ("none" without rows, "missing", "number", "bool", "text", …) and its dtype."""

    group: str
    dtype: Any

    def __str__(self) -> str:
        return {"text": "text", "gaps": "bool with gaps", "missing": "empty"}.get(self.group, str(self.dtype))


Schema = dict[Any, Kind]


def kinds(frame: Frame) -> Schema:
    """Return the kind of every column, including named index levels."""
    return {name: _kind(column) for name, column in flat(frame).items()}


def flat(frame: Frame) -> Frame:
    """Turn the frame's named index levels into columns."""
    return frame.reset_index() if any(name is not None for name in frame.index.names) else frame


def indexed(frame: Frame, names: list[Any]) -> Frame:
    """Set these columns as the frame's index."""
    if not names:
        return frame
    result = frame.set_index(names)
    if isinstance(result.index, pandas().RangeIndex):
        # Joining shards would take a RangeIndex for row numbers and drop it.
        result.index = pandas().Index(np.asarray(result.index), name=result.index.name)
    return result


def _kind(column: Any) -> Kind:
    dtype, types = column.dtype, pandas().api.types
    if not len(column):
        return Kind("none", dtype)
    if pandas().isna(column.iloc[:1]).all() and column.isna().all():
        return Kind("missing", dtype)
    if isinstance(dtype, pandas().CategoricalDtype):
        return Kind("category", dtype)
    if isinstance(dtype, np.dtype) and dtype.kind in "iufb":
        return Kind("bool" if dtype.kind == "b" else "number", dtype)
    if types.is_datetime64_any_dtype(dtype):
        return Kind("time", dtype)
    if isinstance(dtype, pandas().StringDtype):
        return Kind("text", dtype)
    if dtype == OBJECT:
        inferred = types.infer_dtype(column, skipna=True)
        return Kind({"boolean": "gaps", "string": "text"}.get(inferred, "other"), dtype)
    return Kind("other", dtype)


def merge(one: Kind, two: Kind) -> Kind | None:
    """Return the kind that holds the values of both, or None.

    >>> str(merge(Kind("number", np.dtype("i8")), Kind("number", np.dtype("f8"))))
    'float64'
    >>> merge(Kind("number", np.dtype("i8")), Kind("bool", np.dtype(bool))) is None
    True
    """
    if one.group == "none" or two.group == "none":
        if one.group == two.group:
            return two if one.dtype == OBJECT else one
        return two if one.group == "none" else one
    if one.group == "missing" or two.group == "missing":
        other = two if one.group == "missing" else one
        if other.group == "number" and other.dtype.kind in "iu":
            return Kind("number", np.dtype("f8"))
        return Kind("gaps", OBJECT) if other.group == "bool" else other
    groups = {one.group, two.group}
    if groups == {"number"}:
        both = np.result_type(one.dtype, two.dtype)
        # The common type of int64 and uint64 is float64, in which neither is exact.
        return Kind("number", both) if "f" in (one.dtype.kind, two.dtype.kind) or both.kind in "iu" else None
    if groups <= {"bool", "gaps"}:
        return one if one == two else Kind("gaps", OBJECT)
    if groups == {"text"}:
        return one
    if one.dtype == two.dtype:
        return one
    if groups == {"time"} and str(getattr(one.dtype, "tz", "")) == str(getattr(two.dtype, "tz", "")):
        return max(one, two, key=lambda kind: ["s", "ms", "us", "ns"].index(np.datetime_data(_plain(kind.dtype))[0]))
    if groups == {"category"} and one.dtype.ordered == two.dtype.ordered is False:
        union = one.dtype.categories.append(two.dtype.categories).unique()
        return Kind("category", pandas().CategoricalDtype(union))
    return None


def _plain(dtype: Any) -> np.dtype[Any]:
    return dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.base)


def unify(schemas: Sequence[Schema], labels: Sequence[str], picking: str, advice: str) -> Schema:
    """Return a schema that holds the values of all.

    For messages, `picking` is the argument that selects columns and `advice` says how to resolve a conflict of types.
    """
    first, common = schemas[0], dict(schemas[0])
    origin = dict.fromkeys(common, labels[0])
    for schema, label in zip(schemas[1:], labels[1:], strict=True):
        for have, lack, lacking, having in ((first, schema, label, labels[0]), (schema, first, labels[0], label)):
            for name in have:
                if name not in lack:
                    raise DataError(
                        f"{lacking} has no column {name!r}, which {having} has."
                        f"{suggest(str(name), map(str, lack))} Select the columns that all files have with {picking}=."
                    )
        for name, kind in schema.items():
            both = merge(common[name], kind)
            if both is None:
                fix = advice.format(name=name)
                raise DataError(f"{label}: column {name!r} is {kind}, in {origin[name]} it is {common[name]}. {fix}")
            if common[name].group in ("none", "missing") and kind.group not in ("none", "missing"):
                origin[name] = label
            common[name] = both
    return {name: _settled(kind) for name, kind in common.items()}


def _settled(kind: Kind) -> Kind:
    if kind.group == "missing" and kind.dtype == OBJECT:
        return Kind("missing", np.dtype("f8"))
    return kind


def alike(schema: Schema, target: Schema) -> bool:
    """Whether a frame with this schema needs no cast."""
    return list(schema) == list(target) and all(schema[name].dtype == target[name].dtype for name in target)


def cast(frame: Frame, target: Schema, label: str) -> Frame:
    """Cast the frame to the columns and dtypes of `target`."""
    index = [name for name in frame.index.names if name is not None]
    source = flat(frame)
    columns = {name: _cast(source[name], kind, f"{label}: column {name!r}") for name, kind in target.items()}
    return indexed(pandas().DataFrame(columns, index=source.index, copy=False), index)


def _cast(column: Any, kind: Kind, what: str) -> Any:
    own = column.dtype
    if own == kind.dtype:
        return column
    if isinstance(own, np.dtype) and own.kind in "iu" and isinstance(kind.dtype, np.dtype) and kind.dtype.kind == "f":
        if len(column) and max(abs(int(column.min())), abs(int(column.max()))) > _EXACT:
            raise DataError(
                f"{what} has integers that are too large to be {kind.dtype}, which the other files need. "
                "Give it a dtype, for instance 'Int64' or 'str'."
            )
        return column.astype(kind.dtype)
    if not len(column) or column.isna().all():
        return pandas().Series([None] * len(column), index=column.index, dtype=kind.dtype)
    return column.astype(kind.dtype)
