"""Scalers and an indexer for columns, fitted over all shards in one pass and applied where the rows lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from orca.errors import ArgumentError, ColumnError, DataError, NotFittedError, OrcaError, suggest
from orca.shards import frames
from orca.shards.tree import as_arrays, kind_of, pick_rows, row_count
from orca.shards.xshards import XShards

Names = str | Sequence[str]
Array = np.ndarray[Any, Any]

INVALID = ("error", "keep", "skip")
_EPSILON = float(np.finfo("f8").eps)
_PLAIN = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")


class StandardScaler:
    """Shift columns to mean 0 and scale them to variance 1, as scikit-learn does.

    `inputCol` is one name or a list of names, of DataFrame columns or of entries of dicts of arrays. An array with
    further axes is scaled per element of its last axis. The result replaces the column, or goes to `outputCol`.
    Missing values are left out in `fit` and stay missing. A constant column is only shifted.

    `mean_`, `var_`, `scale_` and `n_samples_seen_` hold one entry for one name, else a dict by name.

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
        self.inputCol = inputCol
        self.outputCol = outputCol
        self.with_mean = with_mean
        self.with_std = with_std

    def fit(self, shards: XShards) -> Self:
        """Learn mean and variance of each column over all shards."""
        found = _summaries(shards, self)
        variances = {name: _divided(summary.squares, summary.count) for name, summary in found.items()}
        scales = {name: _deviation(summary, variances[name]) for name, summary in found.items()}
        self._lines = {
            name: _Line(
                shift=summary.mean if self.with_mean else np.zeros(()),
                scale=scales[name] if self.with_std else np.ones(()),
            )
            for name, summary in found.items()
        }
        self.mean_ = _told(self, {name: summary.mean for name, summary in found.items()})
        self.var_ = _told(self, variances)
        self.scale_ = _told(self, scales)
        self.n_samples_seen_ = _told(self, {name: summary.count for name, summary in found.items()})
        return self

    def transform(self, shards: XShards) -> XShards:
        """Scale the columns; nothing happens until the result is needed."""
        return _scaled(shards, self)

    def fit_transform(self, shards: XShards) -> XShards:
        """Fit, then transform the same shards."""
        return self.fit(shards).transform(shards)

    def inverse_transform(self, shards: XShards) -> XShards:
        """Turn scaled values, in `outputCol` if there is one, back into values of `inputCol`."""
        return _scaled(shards, self, back=True)


class MinMaxScaler:
    """Scale columns linearly so that their smallest value becomes `min` and their largest `max`.

    Columns, outputs and missing values are as in `StandardScaler`. A constant column becomes `min`. Values beyond
    those seen in `fit` go beyond `min` and `max`.

    `data_min_`, `data_max_` and `data_range_` hold one entry for one name, else a dict by name.

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
        self.inputCol = inputCol
        self.outputCol = outputCol
        self.min = min
        self.max = max

    def fit(self, shards: XShards) -> Self:
        """Learn the smallest and the largest value of each column over all shards."""
        if not self.min < self.max:
            raise ArgumentError(f"min={self.min!r} is not below max={self.max!r}. Give a smaller min or a larger max.")
        found = _summaries(shards, self)
        ranges = {name: summary.high - summary.low for name, summary in found.items()}
        self._lines = {
            name: _Line(
                shift=summary.low,
                # The same border as in scikit-learn: a range of a few roundings near 1 is no range.
                scale=np.where(ranges[name] < 10 * _EPSILON, 1.0, ranges[name]),
                span=self.max - self.min,
                start=self.min,
            )
            for name, summary in found.items()
        }
        self.data_min_ = _told(self, {name: summary.low for name, summary in found.items()})
        self.data_max_ = _told(self, {name: summary.high for name, summary in found.items()})
        self.data_range_ = _told(self, ranges)
        return self

    def transform(self, shards: XShards) -> XShards:
        """Scale the columns; nothing happens until the result is needed."""
        return _scaled(shards, self)

    def fit_transform(self, shards: XShards) -> XShards:
        """Fit, then transform the same shards."""
        return self.fit(shards).transform(shards)

    def inverse_transform(self, shards: XShards) -> XShards:
        """Turn scaled values, in `outputCol` if there is one, back into values of `inputCol`."""
        return _scaled(shards, self, back=True)


class StringIndexer:
    """Number the labels of columns from 0: the most frequent label first, equally frequent ones in sorted order.

    A label that `fit` did not see, or a missing one, is an error, or with ``handle_invalid="keep"`` gets the number
    after the last label, or with ``"skip"`` loses its row. Columns and outputs are as in `StandardScaler`; an array
    with further axes has one set of labels.

    `labels_` is the list of labels by number for one name, else a dict of lists by name.

    >>> shards = XShards.partition({"pet": np.array(["dog", "cat", "eel", "cat"])}, num_shards=2)
    >>> indexer = StringIndexer(inputCol="pet").fit(shards)
    >>> indexer.labels_
    ['cat', 'dog', 'eel']
    >>> indexer.transform(shards).to_numpy()["pet"]
    array([1, 0, 2, 0])
    """

    labels_: Any

    def __init__(self, inputCol: Names, outputCol: Names | None = None, handle_invalid: str = "error") -> None:
        self.inputCol = inputCol
        self.outputCol = outputCol
        self.handle_invalid = handle_invalid

    def fit(self, shards: XShards) -> Self:
        """Count the labels of each column over all shards."""
        self._check()
        found = _measured(shards, self, _label_counts)
        self._labels = {name: _ordered(parts, name) for name, parts in found.items()}
        self.labels_ = self._labels[self.inputCol] if isinstance(self.inputCol, str) else self._labels
        return self

    def transform(self, shards: XShards) -> XShards:
        """Replace labels by their numbers; nothing happens until the result is needed."""
        _check_fitted(self, "_labels", "transform")
        self._check()
        numbers = {name: {label: number for number, label in enumerate(found)} for name, found in self._labels.items()}
        return _checked(shards, "transform").transform_shard(_index_shard, _pairs(self), numbers, self.handle_invalid)

    def fit_transform(self, shards: XShards) -> XShards:
        """Fit, then transform the same shards."""
        return self.fit(shards).transform(shards)

    def _check(self) -> None:
        if self.handle_invalid not in INVALID:
            raise ArgumentError(
                f"handle_invalid={self.handle_invalid!r}: expected one of {', '.join(map(repr, INVALID))}."
                + suggest(self.handle_invalid, INVALID)
            )


# Columns


def _pairs(transformer: Any) -> list[tuple[str, str]]:
    """Input and output name of each column."""
    inputs, outputs = frames.names(transformer.inputCol), frames.names(transformer.outputCol)
    if not inputs:
        raise ArgumentError(f"inputCol={transformer.inputCol!r} names no column.")
    if transformer.outputCol is None:
        outputs = inputs
    if len(inputs) != len(outputs):
        raise ArgumentError(
            f"inputCol={transformer.inputCol!r} and outputCol={transformer.outputCol!r} have different numbers of "
            "names. Give each input column one output column."
        )
    for argument, given in (("inputCol", inputs), ("outputCol", outputs)):
        if len(set(given)) < len(given):
            raise ArgumentError(f"{argument}={given!r} names a column twice. Name each once.")
    return list(zip(inputs, outputs, strict=True))


def _checked(shards: Any, verb: str) -> XShards:
    if not isinstance(shards, XShards):
        raise ArgumentError(
            f"{verb} takes XShards; received a {type(shards).__name__}. Make shards of it with XShards.partition."
        )
    return shards


def _check_fitted(transformer: Any, learned: str, verb: str) -> None:
    if not hasattr(transformer, learned):
        raise NotFittedError(f"This {type(transformer).__name__} is not fitted. Call fit before {verb}.")


def _told(transformer: Any, values: dict[str, Array]) -> Any:
    """Learned values as users see them: plain numbers where a column has one, no dict around a single name."""
    plain = {name: value.item() if value.ndim == 0 else value for name, value in values.items()}
    return plain[transformer.inputCol] if isinstance(transformer.inputCol, str) else plain


def _column(shard: Any, name: str, argument: str) -> Any:
    """One column of a frame, as a Series, or one entry of a dict, as an array."""
    kind = kind_of(shard)
    if kind != "frame" and not isinstance(shard, dict):
        raise DataError(f"Shards have to be DataFrames or dicts of arrays; this shard is a {type(shard).__name__}.")
    if name not in shard:
        known = [str(key) for key in shard]
        raise ColumnError(
            f"{argument}={name!r} is not in the data. Columns: {', '.join(known)}." + suggest(name, known)
        )
    found = shard[name] if kind == "frame" else as_arrays(shard[name])
    if kind_of(found) not in ("series", "array") or not found.shape:
        raise DataError(f"Column {name!r} is a {type(found).__name__}; expected one array with a value per row.")
    return found


def _with_columns(shard: Any, made: dict[str, Array]) -> Any:
    return shard.assign(**made) if kind_of(shard) == "frame" else {**shard, **made}


def _measured(shards: XShards, transformer: Any, measure: Callable[[Any, str], Any]) -> dict[str, list[Any]]:
    """What `measure` says of each column of each shard, in one pass; of shards without rows it is not asked."""
    wanted = [name for name, _ in _pairs(transformer)]
    parts = _checked(shards, "fit").transform_shard(_measure_shard, wanted, measure).collect()
    for part in parts:
        if isinstance(part, OrcaError):
            raise part
    found = [part for part in parts if part is not None]
    if not found:
        raise DataError(f"The shards have no rows. A {type(transformer).__name__} cannot learn from them.")
    return {name: [part[name] for part in found] for name in wanted}


def _measure_shard(shard: Any, wanted: list[str], measure: Callable[[Any, str], Any]) -> Any:
    # An error goes back as a result, because a step that raises would lose the error's class on the way.
    try:
        columns = {name: _column(shard, name, "inputCol") for name in wanted}
        if not row_count(columns):
            return None
        return {name: measure(values, name) for name, values in columns.items()}
    except OrcaError as error:
        return error


# Numbers


@dataclass(frozen=True)
class _Summary:
    """One column of one shard, or of all; each field has one entry per element of the last axis.

    The mean is ``mean + rest``: far from zero one float has too few digits for it, and a variance put together
    from such means would depend on the cut. ``squares`` is the sum of squared differences from the mean.
    """

    count: Array
    mean: Array
    rest: Array
    squares: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class _Line:
    """Scaling as a straight line; subtracting before dividing keeps the digits of values far from zero."""

    shift: Array
    scale: Array
    span: float = 1.0
    start: float = 0.0

    def forth(self, values: Array) -> Array:
        return (values - self.shift) / self.scale * self.span + self.start

    def back(self, values: Array) -> Array:
        return (values - self.start) / self.span * self.scale + self.shift


def _numbers(values: Any, name: str) -> Array:
    """A column as float64, with NaN where a value is missing."""
    kind = getattr(values.dtype, "kind", "O")
    if not values.shape[0]:
        return np.empty(values.shape)
    if kind in "biuf":
        is_series = kind_of(values) == "series"
        return np.asarray(values.to_numpy("f8", na_value=np.nan) if is_series else values, dtype="f8")
    if kind == "O":
        # Numbers come as objects where some are missing, and from decimals.
        pandas, objects = frames.pandas(), np.asarray(values, object)
        if pandas.api.types.infer_dtype(objects.ravel(), skipna=True) in _PLAIN:
            return np.where(pandas.isna(objects), np.nan, objects).astype("f8")
    raise DataError(f"Column {name!r} is not numeric: its dtype is {values.dtype}. Turn it into numbers first.")


def _summary(values: Any, name: str) -> _Summary:
    numbers = _numbers(values, name)
    if np.isinf(numbers).any():
        raise DataError(f"Column {name!r} has infinite values. Replace or drop them first.")
    axes = tuple(range(max(1, numbers.ndim - 1)))
    known = ~np.isnan(numbers)
    count = np.asarray(known.sum(axis=axes))
    mean = _divided(np.where(known, numbers, 0.0).sum(axis=axes), count, empty=0.0)
    differences = np.where(known, numbers - mean, 0.0)
    rest = _divided(differences.sum(axis=axes), count, empty=0.0)
    squares = np.asarray((differences**2).sum(axis=axes) - count * rest**2)
    low = np.asarray(np.where(known, numbers, np.inf).min(axis=axes))
    high = np.asarray(np.where(known, numbers, -np.inf).max(axis=axes))
    return _Summary(count, mean, rest, np.maximum(squares, 0.0), low, high)


def _merged(parts: list[_Summary], name: str) -> _Summary:
    """Put the shards' summaries together, by what each shard's mean is away from the common one."""
    widths = {part.mean.shape for part in parts}
    if len(widths) > 1:
        raise DataError(f"Column {name!r} has last axes of different lengths: {sorted(widths)}. Make the shards alike.")
    counts = np.stack([part.count for part in parts])
    means = np.stack([part.mean for part in parts])
    count = np.asarray(counts.sum(axis=0))
    mean = _divided((counts * means).sum(axis=0), count)
    away = (means - mean) + np.stack([part.rest for part in parts])
    rest = _divided((counts * away).sum(axis=0), count)
    squares = np.asarray(sum(part.squares for part in parts) + (counts * (away - rest) ** 2).sum(axis=0))
    low = np.asarray(np.min([part.low for part in parts], axis=0))
    high = np.asarray(np.max([part.high for part in parts], axis=0))
    seen = count > 0
    low, high = np.where(seen, low, np.nan), np.where(seen, high, np.nan)
    return _Summary(count, np.asarray(mean + rest), np.zeros_like(rest), squares, low, high)


def _divided(total: Array, count: Array, empty: float = np.nan) -> Array:
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), empty))


def _deviation(summary: _Summary, variance: Array) -> Array:
    """The standard deviation, or 1 where the column is constant but for rounding, by scikit-learn's bound."""
    bound = summary.count * _EPSILON * variance + (summary.count * summary.mean * _EPSILON) ** 2
    constant = (variance <= bound) | (summary.low == summary.high)
    return np.where(constant, 1.0, np.sqrt(variance))


def _summaries(shards: XShards, transformer: Any) -> dict[str, _Summary]:
    found = _measured(shards, transformer, _summary)
    return {name: _merged(parts, name) for name, parts in found.items()}


def _scaled(shards: XShards, transformer: Any, back: bool = False) -> XShards:
    verb = "inverse_transform" if back else "transform"
    _check_fitted(transformer, "_lines", verb)
    return _checked(shards, verb).transform_shard(_scale_shard, _pairs(transformer), transformer._lines, back)


def _scale_shard(shard: Any, pairs: list[tuple[str, str]], lines: dict[str, _Line], back: bool) -> Any:
    made: dict[str, Array] = {}
    for source, target in pairs:
        line = lines[source]
        read, write = (target, source) if back else (source, target)
        argument = "outputCol" if back and source != target else "inputCol"
        values = _column(shard, read, argument)
        numbers = _numbers(values, read)
        # An empty shard may not know its inner shape, so it is not computed with.
        result = (line.back(numbers) if back else line.forth(numbers)) if len(numbers) else numbers
        small = getattr(values.dtype, "kind", "O") == "f" and values.dtype.itemsize < 8
        made[write] = result.astype(f"f{values.dtype.itemsize}") if small else result
    return _with_columns(shard, made)


# Labels


def _codes(values: Any, name: str) -> tuple[Array, list[Any]]:
    """A number per value, -1 for a missing one, and the different values by number."""
    pandas = frames.pandas()
    flat = values if kind_of(values) == "series" else np.asarray(values).ravel()
    try:
        codes, different = pandas.factorize(flat)
    except TypeError as error:
        raise DataError(f"Column {name!r} holds values that cannot be labels: {error}.") from error
    return np.asarray(codes), pandas.Index(different).tolist()


def _label_counts(values: Any, name: str) -> dict[Any, int]:
    codes, different = _codes(values, name)
    counts = np.bincount(codes[codes >= 0], minlength=len(different))
    return dict(zip(different, counts.tolist(), strict=True))


def _ordered(parts: list[dict[Any, int]], name: str) -> list[Any]:
    total: dict[Any, int] = {}
    for part in parts:
        for label, count in part.items():
            total[label] = total.get(label, 0) + count
    try:
        return sorted(total, key=lambda label: (-total[label], label))
    except TypeError as error:
        kinds = ", ".join(sorted({type(label).__name__ for label in total}))
        raise DataError(f"Column {name!r} has labels that cannot be sorted together: {kinds}. Use one type.") from error


def _index_shard(shard: Any, pairs: list[tuple[str, str]], numbers: dict[str, dict[Any, int]], invalid: str) -> Any:
    made: dict[str, Array] = {}
    kept: Array | None = None
    for source, target in pairs:
        values = _column(shard, source, "inputCol")
        codes, different = _codes(values, source)
        # The last entry is where the -1 of missing values points.
        table = np.array([*(numbers[source].get(label, -1) for label in different), -1])
        found = table[codes].reshape(values.shape)
        if invalid == "error" and (found < 0).any():
            unseen = [label for label in different if label not in numbers[source]]
            raise _unseen(unseen, source, list(numbers[source]))
        if invalid == "skip":
            whole = np.asarray((found >= 0).all(axis=tuple(range(1, found.ndim))))
            kept = whole if kept is None else kept & whole
        made[target] = np.where(found < 0, len(numbers[source]), found)
    result = _with_columns(shard, made)
    if kept is None:
        return result
    result = pick_rows(result, np.flatnonzero(kept))
    return result.reset_index(drop=True) if kind_of(result) == "frame" else result


def _unseen(labels: list[Any], name: str, known: list[Any]) -> DataError:
    if not labels:
        return DataError(f"Column {name!r} has a missing label. Fill it, or use handle_invalid='keep' or 'skip'.")
    shown = ", ".join(map(repr, known[:5])) + (", …" if len(known) > 5 else "")
    return DataError(
        f"The label {labels[0]!r} in column {name!r} was not seen in fit. Labels: {shown}."
        + suggest(str(labels[0]), map(str, known))
        + " Fit again, or use handle_invalid='keep' or 'skip'."
    )
