"""Count, mean, variance and range of a numeric column: computed per shard, merged without losing digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards import frames
from orca.shards.transformers.columns import Array
from orca.shards.tree import kind_of

EPSILON = float(np.finfo("f8").eps)
_NUMERIC = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")


@dataclass(frozen=True)
class Summary:
    """One column of one shard, or of all; each field has one entry per element of the last axis.

    The mean is ``mean + rest``: far from zero a single float has too few digits, and a variance merged from such
    means would depend on how the rows are split. ``squares`` is the sum of squared differences from the mean.
    """

    count: Array
    mean: Array
    rest: Array
    squares: Array
    low: Array
    high: Array

    @property
    def variance(self) -> Array:
        return divided(self.squares, self.count)

    @property
    def deviation(self) -> Array:
        """The standard deviation, or 1 where the column is constant up to rounding, by scikit-learn's bound."""
        variance = self.variance
        bound = self.count * EPSILON * variance + (self.count * self.mean * EPSILON) ** 2
        constant = (variance <= bound) | (self.low == self.high)
        return np.where(constant, 1.0, np.sqrt(variance))


def as_numbers(values: Any, name: str) -> Array:
    """Return a column as float64, with NaN for missing values."""
    kind = getattr(values.dtype, "kind", "O")
    if not values.shape[0]:
        return np.empty(values.shape)
    if kind in "biuf":
        is_series = kind_of(values) == "series"
        return np.asarray(values.to_numpy("f8", na_value=np.nan) if is_series else values, dtype="f8")
    if kind == "O":
        # Columns of decimals, and of numbers with missing values, have dtype object.
        pandas, objects = frames.pandas(), np.asarray(values, object)
        if pandas.api.types.infer_dtype(objects.ravel(), skipna=True) in _NUMERIC:
            return np.where(pandas.isna(objects), np.nan, objects).astype("f8")
    raise DataError(f"Column {name!r} is not numeric: its dtype is {values.dtype}. Convert it to numbers first.")


def summarize(values: Any, name: str) -> Summary:
    """Summarize one column of one shard."""
    numbers = as_numbers(values, name)
    if np.isinf(numbers).any():
        raise DataError(f"Column {name!r} has infinite values. Replace or drop them first.")
    axes = tuple(range(max(1, numbers.ndim - 1)))
    present = ~np.isnan(numbers)
    count = np.asarray(present.sum(axis=axes))
    mean = divided(np.where(present, numbers, 0.0).sum(axis=axes), count, empty=0.0)
    differences = np.where(present, numbers - mean, 0.0)
    rest = divided(differences.sum(axis=axes), count, empty=0.0)
    squares = np.asarray((differences**2).sum(axis=axes) - count * rest**2)
    low = np.asarray(np.where(present, numbers, np.inf).min(axis=axes))
    high = np.asarray(np.where(present, numbers, -np.inf).max(axis=axes))
    return Summary(count, mean, rest, np.maximum(squares, 0.0), low, high)


def merge(parts: list[Summary], name: str) -> Summary:
    """Merge the shards' summaries, by the distance of each shard's mean from the common mean."""
    widths = {part.mean.shape for part in parts}
    if len(widths) > 1:
        raise DataError(f"Column {name!r} has last axes of different lengths: {sorted(widths)}. Make the shards alike.")
    counts = np.stack([part.count for part in parts])
    means = np.stack([part.mean for part in parts])
    count = np.asarray(counts.sum(axis=0))
    mean = divided((counts * means).sum(axis=0), count)
    distances = (means - mean) + np.stack([part.rest for part in parts])
    rest = divided((counts * distances).sum(axis=0), count)
    squares = np.asarray(sum(part.squares for part in parts) + (counts * (distances - rest) ** 2).sum(axis=0))
    low = np.asarray(np.min([part.low for part in parts], axis=0))
    high = np.asarray(np.max([part.high for part in parts], axis=0))
    has_values = count > 0
    low, high = np.where(has_values, low, np.nan), np.where(has_values, high, np.nan)
    return Summary(count, np.asarray(mean + rest), np.zeros_like(rest), squares, low, high)


def divided(total: Array, count: Array, empty: float = np.nan) -> Array:
    """Divide by counts, with `empty` where a count is 0."""
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), empty))
