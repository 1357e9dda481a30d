"""Columns that no model can take, found in the types of a frame, a table or a schema before its rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from orca.errors import DataError
from orca.shards.checks import INDEX_TEXT, check_array, short
from orca.shards.columns import mixed_values, pandas_only, series_to_numpy
from orca.shards.tree import kind_of

_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_WORDS = {
    "U": "text",
    "S": "bytes",
    "M": "points in time",
    "m": "durations",
    "V": "structures",
}
_SPARK = {
    "string": "U",
    "varchar": "U",
    "char": "U",
    "binary": "S",
    "date": "M",
    "timestamp": "M",
    "time": "M",
    "interval": "m",
    "map": "V",
    "struct": "V",
    "variant": "V",
}
"""Kinds by the beginning of Spark's names of types."""


class Problem(NamedTuple):
    """Why a model cannot take a column."""

    kind: str
    """The kind of numpy dtype that the column would have."""
    message: str


Problems = Mapping[str, Problem]


def problems(table: Any, names: Iterable[str] | None = None) -> dict[str, Problem]:
    """Return the columns of a frame or table that are not numbers; `names` are those to look at."""
    wanted = None if names is None else set(names)
    found: dict[str, Problem] = {}
    kind = kind_of(table)
    keys = table.column_names if kind == "table" else list(table.columns)
    for place, key in enumerate(keys):
        name = str(key)
        if wanted is None or name in wanted:
            column = table.column(place) if kind == "table" else table.iloc[:, place]
            problem = _of_arrow(column.type, name, column) if kind == "table" else _of_series(column, name)
            if problem is not None:
                found[name] = problem
    return found


def schema_problems(types: Mapping[str, Any]) -> dict[str, Problem]:
    """Return the columns that are not numbers, by their types of Arrow or pandas."""
    found = {name: _of_type(kind, name) for name, kind in types.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def _of_type(kind: Any, name: str) -> Problem | None:
    if hasattr(kind, "id"):
        return _of_arrow(kind, name)
    code = getattr(kind, "kind", "")
    code = code if code in "Mm" else "U" if str(kind).startswith("str") else ""
    return Problem(code, _text(name, code, str(kind))) if code else None


def spark_problems(types: Mapping[str, str]) -> dict[str, Problem]:
    """Return the columns that are not numbers, by the names of Spark's types.

    >>> spark_problems({"a": "string", "b": "double", "c": "array<float>"})["a"].kind
    'U'
    """
    found: dict[str, Problem] = {}
    for name, simple in types.items():
        inner = simple
        while inner.startswith("array<"):
            inner = inner[len("array<") :]
        kind = next((kind for word, kind in _SPARK.items() if inner.startswith(word)), None)
        if kind is not None:
            found[name] = Problem(kind, _text(name, kind, simple))
    return found


def _text(name: str, kind: str, described: str, sample: str = "") -> str:
    advice = {
        "M": "Turn them into numbers, for example seconds since some day, or leave the column out of feature_cols=.",
        "m": "Turn them into numbers, for example seconds, or leave the column out of feature_cols=.",
        "V": "Select its fields as columns of their own.",
    }.get(kind, INDEX_TEXT)
    return f"Column {name!r} has {_WORDS[kind]} ({described}{sample}); a model takes numbers. {advice}"


def _such_as(values: Iterable[Any]) -> str:
    for row, value in enumerate(values):
        if value is not None and value == value:
            return f", such as {short(value)} in row {row}"
    return ""


def _of_series(series: Any, name: str) -> Problem | None:
    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    label = f"Column {name!r}"
    if isinstance(dtype, np.dtype) and kind not in "OMm":
        return _of_array(series.to_numpy(), label)
    if kind in "Mm":
        return Problem(kind, _text(name, kind, str(dtype), _such_as(series.iloc[:100])))
    if hasattr(dtype, "categories"):
        inner = _of_series(dtype.categories.to_series(), name)
        if inner is None or inner.kind != "U":
            return inner
        return Problem("U", _text(name, "U", str(dtype), _such_as(series.iloc[:100])))
    if hasattr(dtype, "pyarrow_dtype"):
        return _of_arrow(dtype.pyarrow_dtype, name, series)
    if type(dtype).__name__ in ("SparseDtype", "PeriodDtype", "IntervalDtype"):
        try:
            series_to_numpy(series, name)
        except DataError as error:
            return Problem("O", str(error))
    if str(dtype).startswith("str"):
        return Problem("U", _text(name, "U", str(dtype), _such_as(series.iloc[:100])))
    return _of_objects(series, name) if kind == "O" else None


def _of_objects(series: Any, name: str) -> Problem | None:
    first = next((value for value in series.iloc[:100] if value is not None and value is not np.nan), None)
    if isinstance(first, np.ndarray | list | tuple | dict):
        return None  # arrays, one per row: their conversion knows more
    from pandas.api.types import infer_dtype

    inferred = infer_dtype(series, skipna=True)
    if inferred in _NUMBERS:
        return None
    kinds = {"string": "U", "bytes": "S", "date": "M", "time": "M", "datetime": "M", "datetime64": "M"}
    kind = kinds.get(inferred, "m" if inferred.startswith("timedelta") else "")
    if kind:
        return Problem(kind, _text(name, kind, str(series.dtype), _such_as(series.iloc[:100])))
    return Problem("O", mixed_values(series, name))


def _of_array(array: np.ndarray[Any, Any], label: str) -> Problem | None:
    try:
        check_array(array, label)
    except DataError as error:
        return Problem(array.dtype.kind, str(error))
    return None


def _of_arrow(kind: Any, name: str, column: Any = None) -> Problem | None:
    import pyarrow as pa

    is_a = pa.types
    described, inner = str(kind), kind
    while is_a.is_dictionary(inner) or hasattr(inner, "value_field"):
        inner = inner.value_type
    if isinstance(inner, pa.BaseExtensionType):
        what = pandas_only(inner)
        return Problem("O", f"Column {name!r} holds {what}; a model takes numbers.") if what else None
    if is_a.is_uint64(inner) and inner is kind and kind_of(column) != "series" and column is not None:
        return _of_array(column.drop_null().to_numpy(), f"Column {name!r}")
    code = ""
    if is_a.is_string(inner) or is_a.is_large_string(inner) or is_a.is_string_view(inner):
        code = "U"
    elif is_a.is_binary(inner) or is_a.is_large_binary(inner) or is_a.is_binary_view(inner):
        code = "S"
    elif is_a.is_timestamp(inner) or is_a.is_date(inner) or is_a.is_time(inner):
        code = "M"
    elif is_a.is_duration(inner) or is_a.is_interval(inner):
        code = "m"
    elif is_a.is_struct(inner) or is_a.is_map(inner):
        code = "V"
    if not code:
        return None
    values: Any = ()
    if column is not None and inner is kind:
        values = column.iloc[:100] if kind_of(column) == "series" else column.slice(0, 100).to_pylist()
    return Problem(code, _text(name, code, described, _such_as(values)))
