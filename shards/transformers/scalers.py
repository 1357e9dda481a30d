"""StandardScaler and MinMaxScaler: a linear scaling of each column, learned over all shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from orca.errors import ArgumentError
from orca.shards.engines.base import Shard
from orca.shards.frames import Names
from orca.shards.transformers import summaries
from orca.shards.transformers.columns import (
    Array,
    check_fitted,
    check_shards,
    column_of,
    column_pairs,
    measure_columns,
    with_columns,
)
from orca.shards.transformers.summaries import EPSILON, Summary
from orca.shards.xshards import XShards


@dataclass(frozen=True)
class Line:
    """A linear scaling; subtracting before dividing keeps the digits of values far from zero."""

    shift: Array
    scale: Array
    span: float = 1.0
    start: float = 0.0

    def apply(self, values: Array) -> Array:
        return (values - self.shift) / self.scale * self.span + self.start

    def invert(self, values: Array) -> Array:
        return (values - self.start) / self.span * self.scale + self.shift


class Scaler(ABC):
    """Base of the scalers: learns one line per column and applies it, or its inverse, to the rows."""

    _lines: dict[str, Line]

    def __init__(self, inputCol: Names, outputCol: Names | None = None) -> None:
        self.inputCol = inputCol
        self.outputCol = outputCol

    @abstractmethod
    def _learn(self, columns: dict[str, Summary]) -> dict[str, Line]:
        """Set the learned attributes and return the line of each column."""

    def fit(self, shards: XShards) -> Self:
        """Learn the scaling of each column over all shards.

        Raises:
            ColumnError: If a column is missing.
            DataError: If a column is not numeric or has infinite values, or there are no rows.
        """
        measured = measure_columns(shards, self, summaries.summarize)
        self._lines = self._learn({name: summaries.merge(parts, name) for name, parts in measured.items()})
        return self

    def transform(self, shards: XShards) -> XShards:
        """Scale the columns. Lazy: nothing runs until the result is needed."""
        check_fitted(self, "_lines", "transform")
        return check_shards(shards, "transform").transform_shard(_scale_shard, column_pairs(self), self._lines)

    def fit_transform(self, shards: XShards) -> XShards:
        """Fit, then transform the same shards."""
        return self.fit(shards).transform(shards)

    def inverse_transform(self, shards: XShards) -> XShards:
        """Turn scaled values, in `outputCol` if there is one, back into values of `inputCol`."""
        check_fitted(self, "_lines", "inverse_transform")
        return check_shards(shards, "inverse_transform").transform_shard(
            _unscale_shard, column_pairs(self), self._lines
        )

    def _public(self, values: dict[str, Array]) -> Any:
        """Return learned values as users see them: plain numbers where possible, no dict around a single name."""
        plain = {name: value.item() if value.ndim == 0 else value for name, value in values.items()}
        return plain[self.inputCol] if isinstance(self.inputCol, str) else plain


class StandardScaler(Scaler):
    """Shift columns to mean 0 and scale them to variance 1, as scikit-learn does.

    An array with further axes is scaled per element of its last axis. Missing values are ignored in `fit` and stay
    missing. A constant column is only shifted.

    `mean_`, `var_`, `scale_` and `n_samples_seen_` hold one entry for one name, else a dict by name.

    Args:
        inputCol: One name or several, of DataFrame columns or of entries of dicts of arrays.
        outputCol: Names of the results. Default: the results replace the inputs.
        with_mean: Shift to mean 0.
        with_std: Scale to variance 1.

    >>> shards = XShards.partition({"x": np.array([1.0, 2.0, 3.0, 6.0])}, num_shards=3)
    >>> scaler = StandardScaler(inputCol="x").fit(shards)
    >>> scaler.mean_, scaler.var_
    (3.0, 3.5)
    >>> scaled = scaler.transform(shards)
    >>> scaled.to_numpy()["x"].round(3)
    array([-1.069, -0.535,  0.   ,  1.604])
    >>> scaler.inverse_transform(scaled).to_numpy()["x"]
    array([1., 2., 3., 6.])
    """

    mean_: Any
    var_: Any
    scale_: Any
    n_samples_seen_: Any

    def __init__(
        self, inputCol: Names, outputCol: Names | None = None, with_mean: bool = True, with_std: bool = True
    ) -> None:
        super().__init__(inputCol, outputCol)
        self.with_mean = with_mean
        self.with_std = with_std

    def _learn(self, columns: dict[str, Summary]) -> dict[str, Line]:
        scales = {name: column.deviation for name, column in columns.items()}
        self.mean_ = self._public({name: column.mean for name, column in columns.items()})
        self.var_ = self._public({name: column.variance for name, column in columns.items()})
        self.scale_ = self._public(scales)
        self.n_samples_seen_ = self._public({name: column.count for name, column in columns.items()})
        return {
            name: Line(
                shift=column.mean if self.with_mean else np.zeros(()),
                scale=scales[name] if self.with_std else np.ones(()),
            )
            for name, column in columns.items()
        }


class MinMaxScaler(Scaler):
    """Scale columns linearly so that their smallest value becomes `min` and their largest `max`.

    Arrays and missing values are handled as in `StandardScaler`. A constant column becomes `min`. Values beyond
    those seen in `fit` are scaled beyond `min` and `max`.

    `data_min_`, `data_max_` and `data_range_` hold one entry for one name, else a dict by name.

    Args:
        inputCol: One name or several, of DataFrame columns or of entries of dicts of arrays.
        outputCol: Names of the results. Default: the results replace the inputs.
        min: The smallest scaled value.
        max: The largest scaled value.

    >>> shards = XShards.partition({"x": np.array([2.0, 4.0, 6.0]), "y": np.array([[0, 5], [1, 5], [4, 7]])}, 2)
    >>> scaler = MinMaxScaler(inputCol=["x", "y"], min=-1.0).fit(shards)
    >>> scaler.data_min_
    {'x': 2.0, 'y': array([0., 5.])}
    >>> scaler.transform(shards).to_numpy()["y"]
    array([[-1. , -1. ],
           [-0.5, -1. ],
           [ 1. ,  1. ]])
    """

    data_min_: Any
    data_max_: Any
    data_range_: Any

    def __init__(self, inputCol: Names, outputCol: Names | None = None, min: float = 0.0, max: float = 1.0) -> None:
        super().__init__(inputCol, outputCol)
        self.min = min
        self.max = max

    def fit(self, shards: XShards) -> Self:
        """Learn the smallest and the largest value of each column over all shards.

        Raises:
            ArgumentError: If `min` is not less than `max`.
            ColumnError: If a column is missing.
            DataError: If a column is not numeric or has infinite values, or there are no rows.
        """
        if not self.min < self.max:
            raise ArgumentError(f"min={self.min!r} is not below max={self.max!r}. Give a smaller min or a larger max.")
        return super().fit(shards)

    def _learn(self, columns: dict[str, Summary]) -> dict[str, Line]:
        ranges = {name: column.high - column.low for name, column in columns.items()}
        self.data_min_ = self._public({name: column.low for name, column in columns.items()})
        self.data_max_ = self._public({name: column.high for name, column in columns.items()})
        self.data_range_ = self._public(ranges)
        return {
            name: Line(
                shift=column.low,
                # The same bound as in scikit-learn: a range within rounding error counts as constant.
                scale=np.where(ranges[name] < 10 * EPSILON, 1.0, ranges[name]),
                span=self.max - self.min,
                start=self.min,
            )
            for name, column in columns.items()
        }


def _scale_shard(shard: Shard, pairs: list[tuple[str, str]], lines: dict[str, Line]) -> Shard:
    return with_columns(
        shard, {target: _scaled(shard, source, lines[source].apply, "inputCol") for source, target in pairs}
    )


def _unscale_shard(shard: Shard, pairs: list[tuple[str, str]], lines: dict[str, Line]) -> Shard:
    return with_columns(
        shard,
        {
            source: _scaled(shard, target, lines[source].invert, "inputCol" if source == target else "outputCol")
            for source, target in pairs
        },
    )


def _scaled(shard: Shard, name: str, function: Callable[[Array], Array], argument: str) -> Array:
    values = column_of(shard, name, argument)
    numbers = summaries.as_numbers(values, name)
    # An empty shard may not have the inner shape of the others, so it is not scaled.
    result = function(numbers) if len(numbers) else numbers
    small = getattr(values.dtype, "kind", "O") == "f" and values.dtype.itemsize < 8
    return result.astype(f"f{values.dtype.itemsize}") if small else result
