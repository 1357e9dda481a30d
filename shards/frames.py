"""What XShards of pandas DataFrames can do: each function works on one shard, or merges small results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.errors import ColumnError, DataError, MissingPackageError, suggest
from orca.shards.tree import kind_of


def pandas() -> Any:
    """Import pandas, or say how to get it."""
    try:
        import pandas
    except ImportError as error:
        raise MissingPackageError("DataFrames need pandas. Run: pip install pandas") from error
    return pandas


def names(columns: str | Sequence[str] | None) -> list[str]:
    """A list of column names from one name, several or none."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str) else list(columns)


def frame_of(shard: Any, what: str) -> Any:
    """The shard, which has to be a DataFrame."""
    if kind_of(shard) != "frame":
        raise DataError(f"{what} works on shards of pandas DataFrames; this shard is a {type(shard).__name__}.")
    return shard


def check_columns(frame: Any, columns: Sequence[str], argument: str) -> None:
    """Raise if a column is not there."""
    for column in columns:
        if column not in frame.columns:
            known = [str(name) for name in frame.columns]
            raise ColumnError(
                f"{argument}: {column!r} is not in the DataFrame. Columns: {', '.join(known)}." + suggest(column, known)
            )


def bucket(frame: Any, columns: Sequence[str], count: int) -> np.ndarray[Any, Any]:
    """A bucket per row such that equal keys share one, whatever integer, float or text type they come in."""
    hashing = pandas().util.hash_array
    mixed = np.zeros(len(frame), "u8")
    for column in columns:
        values = frame[column]
        kind = getattr(values.dtype, "kind", "O")
        if kind in "biuf":
            plain = values.to_numpy(dtype="f8", na_value=np.nan) + 0.0  # no minus zero
        elif kind == "M":
            plain = values.to_numpy(dtype="M8[ns]").view("i8")
        else:
            plain = values.astype(object).where(values.notna(), None).to_numpy()
        mixed = mixed * np.uint64(31) + hashing(plain, categorize=False)
    return (mixed % np.uint64(count)).astype("i8")


def split_by(frame: Any, target: np.ndarray[Any, Any], count: int) -> list[Any]:
    """Cut a frame into pieces by each row's target, keeping the order of rows."""
    order = np.argsort(target, kind="stable")
    borders = np.searchsorted(target[order], np.arange(count + 1))
    return [frame.iloc[order[low:high]] for low, high in itertools.pairwise(borders)]


def sort_sample(frame: Any, column: str, size: int = 1000) -> np.ndarray[Any, Any]:
    """Values of the sort column at even distances, to find borders of even ranges."""
    values = frame[column].dropna().sort_values()
    if not len(values):
        return np.empty(0, object)
    chosen = np.linspace(0, len(values) - 1, min(size, len(values))).astype(int)
    return np.asarray(values.iloc[chosen], dtype=object)


def sort_targets(frame: Any, column: str, borders: np.ndarray[Any, Any], ascending: bool) -> np.ndarray[Any, Any]:
    """The range that each row belongs to; rows without a value come last."""
    count = len(borders) + 1
    values = frame[column]
    missing = values.isna().to_numpy()
    target = np.full(len(frame), count - 1)
    known = np.asarray(values[~missing], dtype=object)
    found = np.searchsorted(borders, known, side="right") if len(borders) else np.zeros(len(known), int)
    target[~missing] = found if ascending else count - 1 - found
    return target


def aggregate(frame: Any, columns: list[str], agg: Any, join: bool) -> Any:
    """Group a frame that holds all rows of its keys."""
    grouped = frame.groupby(columns, as_index=False, dropna=False)
    result = grouped.size() if agg is None else grouped.agg(agg)
    if getattr(result.columns, "nlevels", 1) > 1:
        result.columns = ["_".join(part for part in name if part) for name in result.columns]
    if not join:
        return result
    renamed = {name: f"{name}_agg" for name in result.columns if name not in columns and name in frame.columns}
    return frame.merge(result.rename(columns=renamed), on=columns, how="left")


def moments(frame: Any, columns: list[str]) -> dict[str, tuple[float, float, float, float, float]]:
    """Count, mean, sum of squared differences, minimum and maximum of numeric columns."""
    chosen = columns or list(frame.select_dtypes("number").columns)
    found: dict[str, tuple[float, float, float, float, float]] = {}
    for column in chosen:
        values = frame[column].to_numpy(dtype="f8", na_value=np.nan)
        values = values[~np.isnan(values)]
        if len(values):
            mean = values.mean()
            found[str(column)] = (len(values), mean, ((values - mean) ** 2).sum(), values.min(), values.max())
        else:
            found[str(column)] = (0, 0.0, 0.0, np.inf, -np.inf)
    return found


def merge_moments(parts: list[dict[str, tuple[float, float, float, float, float]]]) -> Any:
    """Put the shards' moments together as a table like that of DataFrame.describe, without quantiles."""
    table: dict[str, list[float]] = {}
    for column in dict.fromkeys(name for part in parts for name in part):
        count, mean, squares, low, high = 0.0, 0.0, 0.0, np.inf, -np.inf
        for part in parts:
            n, m, s, a, b = part.get(column, (0, 0.0, 0.0, np.inf, -np.inf))
            if n:
                delta = m - mean
                squares += s + delta**2 * count * n / (count + n)
                mean += delta * n / (count + n)
                count, low, high = count + n, min(low, a), max(high, b)
        deviation = np.sqrt(squares / (count - 1)) if count > 1 else np.nan
        if not count:
            mean = low = high = np.nan
        table[column] = [count, mean, deviation, low, high]
    return pandas().DataFrame(table, index=["count", "mean", "std", "min", "max"])
