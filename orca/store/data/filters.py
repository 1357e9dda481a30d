"""Filters such as ``x__gt=5`` as expressions that Parquet files evaluate while they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orca.core.arguments import shown
from orca.errors import ArgumentError, ColumnError, listed, suggest


def _between(column: Any, value: Any) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != 2:
        raise ValueError("expected a pair (low, high)")
    return (column >= value[0]) & (column <= value[1])


def _text(function: str) -> Callable[[Any, Any], Any]:
    def apply(column: Any, value: Any) -> Any:
        import pyarrow.compute as pc

        if not isinstance(value, str):
            raise ValueError("expected a text")
        return getattr(pc, function)(column, value)

    return apply


def _is_null(column: Any, value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError("expected True or False")
    return column.is_null() if value else ~column.is_null()


def _one_of(column: Any, value: Any) -> Any:
    if not isinstance(value, Sequence | set) or isinstance(value, str | bytes):
        raise ValueError("expected a list of values")
    return column.isin(list(value))


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda column, value: column == value,
    "ne": lambda column, value: column != value,
    "gt": lambda column, value: column > value,
    "gte": lambda column, value: column >= value,
    "lt": lambda column, value: column < value,
    "lte": lambda column, value: column <= value,
    "in": _one_of,
    "between": _between,
    "contains": _text("match_substring"),
    "startswith": _text("starts_with"),
    "endswith": _text("ends_with"),
    "isnull": _is_null,
}


def expression(filters: Mapping[str, Any], columns: Sequence[str]) -> Any:
    """Return the rows that match all filters as an expression; None without filters.

    >>> expression({"x__gt": 5, "name": "a"}, ["x", "name"])
    <pyarrow.compute.Expression ((x > 5) and (name == "a"))>
    """
    import pyarrow.dataset as ds

    result = None
    for key, value in filters.items():
        name, operator = _split(key, columns)
        if name not in columns:
            raise ColumnError(
                f"{key}={shown(value)}: {name!r} is not a column. Columns: {listed(columns)}.{suggest(name, columns)}"
            )
        try:
            condition = OPERATORS[operator](ds.field(name), value)
        except Exception as error:
            raise ArgumentError(f"{key}={shown(value)}: {error}.") from error
        result = condition if result is None else result & condition
    return result


def _split(key: str, columns: Sequence[str]) -> tuple[str, str]:
    """Return the column and the operator of a filter's name."""
    name, sign, operator = key.rpartition("__")
    if key in columns or not sign:
        return key, "eq"
    if operator not in OPERATORS:
        known = ", ".join(OPERATORS)
        raise ArgumentError(
            f"{key}=: {operator!r} is not an operator. Operators: {known}.{suggest(operator, OPERATORS)}"
        )
    return name, operator
