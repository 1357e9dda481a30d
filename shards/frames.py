"""Functions on one shard that is a pandas DataFrame, and the merging of their small results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from orca.errors import ColumnError, DataError, MissingPackageError, suggest
from orca.shards.tree import kind_of

Frame: TypeAlias = Any
"""A pandas DataFrame; pandas is imported on first use only."""

Names: TypeAlias = str | Sequence[str]
"""One column name or several."""

Moments: TypeAlias = tuple[float, float, float, float, float]
"""Count, mean, sum of squared differences from the mean, minimum and maximum."""


_AS_IN_SPARK: dict[str, Any] = {
    "avg": "mean",
    "stddev": "std",
    "stddev_samp": "std",
    "stddev_pop": lambda values: values.std(ddof=0),
    "variance": "var",
    "var_samp": "var",
    "var_pop": lambda values: values.var(ddof=0),
    "countDistinct": "nunique",
    "count_distinct": "nunique",
    "approx_count_distinct": "nunique",
    "collect_list": lambda values: values.dropna().tolist(),
    "collect_set": lambda values: values.dropna().unique().tolist(),
}
"""Spark's aggregations that have another name in pandas, or none."""


def pandas() -> Any:
    """Import pandas, or say how to install it."""
    try:
        import pandas
    except ImportError as error:
        raise MissingPackageError("DataFrames need pandas. Run: pip install pandas") from error
    return pandas


def names(columns: Names | None) -> list[str]:
    """Return a list of column names from one name, several or none."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str) else list(columns)


def frame_of(shard: Any, caller: str) -> Frame:
    """Return the shard if it is a DataFrame, else raise."""
    if kind_of(shard) != "frame":
        raise DataError(f"{caller} works on shards of pandas DataFrames; this shard is a {type(shard).__name__}.")
    return shard


def check_columns(frame: Frame, columns: Sequence[str], caller: str) -> None:
    """Raise if a column is missing."""
    for column in columns:
        if column not in frame.columns:
            existing = [str(name) for name in frame.columns]
            raise ColumnError(
                f"{caller}: {column!r} is not in the DataFrame. Columns: {', '.join(existing)}."
                + suggest(column, existing)
            )


def has_default_index(shard: Any) -> bool:
    """Whether a shard is a frame whose rows are merely numbered."""
    return kind_of(shard) == "frame" and type(shard.index).__name__ == "RangeIndex" and shard.index.name is None


def bucket(frame: Frame, columns: Sequence[str], count: int) -> np.ndarray[Any, Any]:
    """Assign a bucket to each row; equal keys share one, whichever integer, float or text type they have."""
    hashing = pandas().util.hash_array
    mixed = np.zeros(len(frame), "u8")
    for column in columns:
        values = frame[column]
        kind = getattr(values.dtype, "kind", "O")
        if kind in "biuf":
            plain = values.to_numpy(dtype="f8", na_value=np.nan) + 0.0  # turns -0.0 into 0.0
        elif kind == "M":
            plain = values.to_numpy(dtype="M8[ns]").view("i8")
        else:
            plain = values.astype(object).where(values.notna(), None).to_numpy()
        mixed = mixed * np.uint64(31) + hashing(plain, categorize=False)
    return (mixed % np.uint64(count)).astype("i8")


def split_by(frame: Frame, target: np.ndarray[Any, Any], count: int) -> list[Frame]:
    """Split a frame into `count` pieces by each row's target, keeping the order of rows."""
    order = np.argsort(target, kind="stable")
    borders = np.searchsorted(target[order], np.arange(count + 1))
    return [frame.iloc[order[low:high]] for low, high in itertools.pairwise(borders)]


def sort_sample(frame: Frame, column: str, size: int = 1000) -> np.ndarray[Any, Any]:
    """Sample the sorted values of a column at even distances, to find the borders of even ranges."""
    values = frame[column].dropna().sort_values()
    if not len(values):
        return np.empty(0, object)
    positions = np.linspace(0, len(values) - 1, min(size, len(values))).astype(int)
    return np.asarray(values.iloc[positions], dtype=object)


def sort_targets(frame: Frame, column: str, borders: np.ndarray[Any, Any], ascending: bool) -> np.ndarray[Any, Any]:
    """Return the range that each row belongs to; rows without a value come last."""
    count = len(borders) + 1
    values = frame[column]
    missing = values.isna().to_numpy()
    target = np.full(len(frame), count - 1)
    present = np.asarray(values[~missing], dtype=object)
    ranges = np.searchsorted(borders, present, side="right") if len(borders) else np.zeros(len(present), int)
    target[~missing] = ranges if ascending else count - 1 - ranges
    return target


def aggregate(frame: Frame, columns: list[str], agg: Any, join: bool) -> Frame:
    """Group and aggregate a frame that holds all rows of its keys; without columns all rows are one group."""
    if columns:
        grouped = frame.groupby(columns, as_index=False, dropna=False)
    else:
        grouped = frame.groupby(np.zeros(len(frame), "i1"))
    if agg is None:
        result = grouped.size() if columns else pandas().DataFrame({"size": [len(frame)]})
    else:
        result = grouped.agg(_in_pandas_words(agg))
    if not columns:
        result = result.reset_index(drop=True)
    if getattr(result.columns, "nlevels", 1) > 1:
        result.columns = ["_".join(part for part in name if part) for name in result.columns]
    if not join:
        return result
    renamed = {name: f"{name}_agg" for name in result.columns if name not in columns and name in frame.columns}
    result = result.rename(columns=renamed)
    return frame.merge(result, on=columns, how="left") if columns else frame.merge(result, how="cross")


def _in_pandas_words(agg: Any) -> Any:
    """Replace Spark's names of aggregations by what pandas understands; their results keep the given names."""
    if isinstance(agg, dict):
        return {column: _in_pandas_words(one) for column, one in agg.items()}
    if isinstance(agg, list | tuple):
        return [(one, _AS_IN_SPARK[one]) if isinstance(one, str) and one in _AS_IN_SPARK else one for one in agg]
    return _AS_IN_SPARK.get(agg, agg) if isinstance(agg, str) else agg


def moments(frame: Frame, columns: list[str]) -> dict[str, Moments]:
    """Compute the moments of numeric columns; of all if none are named."""
    result: dict[str, Moments] = {}
    for column in columns or list(frame.select_dtypes("number").columns):
        values = frame[column].to_numpy(dtype="f8", na_value=np.nan)
        values = values[~np.isnan(values)]
        if len(values):
            mean = values.mean()
            result[str(column)] = (len(values), mean, ((values - mean) ** 2).sum(), values.min(), values.max())
        else:
            result[str(column)] = (0, 0.0, 0.0, np.inf, -np.inf)
    return result


def merge_moments(parts: list[dict[str, Moments]]) -> Frame:
    """Merge the shards' moments into a table like that of DataFrame.describe, without quantiles."""
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
