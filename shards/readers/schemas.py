"""Column types of frames that were read apart: told, made alike, or refused with both files' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import DataError, suggest
from orca.shards.frames import pandas

OBJECT = np.dtype(object)
_EXACT = 2**53
"""Whole numbers beyond this do not survive as float64."""


@dataclass(frozen=True)
class Kind:
    """What a column holds: a group ("none" without rows, "missing", "number", "bool", "text", …) and its dtype."""

    group: str
    dtype: Any

    def __str__(self) -> str:
        return {"text": "text", "gaps": "bool with gaps", "missing": "empty"}.get(self.group, str(self.dtype))


Schema = dict[Any, Kind]


def kinds(frame: Any) -> Schema:
    """The kind of every column, named index levels included."""
    return {name: _kind(column) for name, column in flat(frame).items()}


def flat(frame: Any) -> Any:
    """The frame with its named index levels as columns."""
    return frame.reset_index() if any(name is not None for name in frame.index.names) else frame


def indexed(frame: Any, names: list[Any]) -> Any:
    """The frame with these columns as its index."""
    if not names:
        return frame
    made = frame.set_index(names)
    if isinstance(made.index, pandas().RangeIndex):
        # A range of numbers is taken for a mere count of rows, and dropped, when shards are joined.
        made.index = pandas().Index(np.asarray(made.index), name=made.index.name)
    return made


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
        found = types.infer_dtype(column, skipna=True)
        return Kind({"boolean": "gaps", "string": "text"}.get(found, "other"), dtype)
    return Kind("other", dtype)


def merge(one: Kind, two: Kind) -> Kind | None:
    """The kind that holds both, or None.

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
        known = two if one.group == "missing" else one
        if known.group == "number" and known.dtype.kind in "iu":
            return Kind("number", np.dtype("f8"))
        return Kind("gaps", OBJECT) if known.group == "bool" else known
    groups = {one.group, two.group}
    if groups == {"number"}:
        both = np.result_type(one.dtype, two.dtype)
        # int64 and uint64 only meet in float64, where neither of them is exact.
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


def unify(found: Sequence[Schema], labels: Sequence[str], picking: str, advice: str) -> Schema:
    """The schema that all share. `picking` is the argument that names columns, `advice` how to settle a dispute."""
    first, common = found[0], dict(found[0])
    origin = dict.fromkeys(common, labels[0])
    for schema, label in zip(found[1:], labels[1:], strict=True):
        for have, lack, whose, whom in ((first, schema, label, labels[0]), (schema, first, labels[0], label)):
            for name in have:
                if name not in lack:
                    raise DataError(
                        f"{whose} has no column {name!r}, which {whom} has."
                        f"{suggest(str(name), map(str, lack))} Name the columns that all have with {picking}=."
                    )
        for name, kind in schema.items():
            both = merge(common[name], kind)
            if both is None:
                settle = advice.format(name=name)
                raise DataError(f"{label}: column {name!r} is {kind}, in {origin[name]} it is {common[name]}. {settle}")
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


def cast(frame: Any, target: Schema, label: str) -> Any:
    """The frame with the columns and dtypes of `target`."""
    index = [name for name in frame.index.names if name is not None]
    source = flat(frame)
    columns = {name: _cast(source[name], kind, f"{label}: column {name!r}") for name, kind in target.items()}
    made = pandas().DataFrame(columns, index=source.index, copy=False)
    return indexed(made, index)


def _cast(column: Any, kind: Kind, what: str) -> Any:
    own = column.dtype
    if own == kind.dtype:
        return column
    if isinstance(own, np.dtype) and own.kind in "iu" and isinstance(kind.dtype, np.dtype) and kind.dtype.kind == "f":
        if len(column) and max(abs(int(column.min())), abs(int(column.max()))) > _EXACT:
            raise DataError(
                f"{what} has whole numbers that are too large to be {kind.dtype}, which the other files need. "
                "Give it a dtype, for instance 'Int64' or 'str'."
            )
        return column.astype(kind.dtype)
    if not len(column) or column.isna().all():
        return pandas().Series([None] * len(column), index=column.index, dtype=kind.dtype)
    return column.astype(kind.dtype)
