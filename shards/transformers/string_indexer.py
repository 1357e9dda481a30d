"""StringIndexer: labels of columns as integers, the most frequent first."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from orca.errors import ArgumentError, DataError, suggest
from orca.shards import frames
from orca.shards.engines.base import Shard
from orca.shards.frames import Names
from orca.shards.transformers.columns import (
    Array,
    check_fitted,
    check_shards,
    column_of,
    column_pairs,
    measure_columns,
    with_columns,
)
from orca.shards.tree import kind_of, pick_rows
from orca.shards.xshards import XShards

INVALID = ("error", "keep", "skip")


class StringIndexer:
    """Number the labels of columns from 0: the most frequent label first, equally frequent ones in sorted order.

    An array with further axes has one set of labels. `labels_` is the list of labels by number for one name, else a
    dict of lists by name.

    Args:
        inputCol: One name or several, of DataFrame columns or of entries of dicts of arrays.
        outputCol: Names of the results. Default: the results replace the inputs.
        handle_invalid: What to do with a label that is missing or was not seen in `fit`: "error" raises, "keep"
            gives it the number after the last label, "skip" drops its row.

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
        """Count the labels of each column over all shards.

        Raises:
            ArgumentError: If `handle_invalid` is unknown.
            ColumnError: If a column is missing.
            DataError: If values cannot be labels or cannot be sorted together, or there are no rows.
        """
        self._check()
        counts = measure_columns(shards, self, _label_counts)
        self._labels = {name: _ordered(parts, name) for name, parts in counts.items()}
        self.labels_ = self._labels[self.inputCol] if isinstance(self.inputCol, str) else self._labels
        return self

    def transform(self, shards: XShards) -> XShards:
        """Replace labels by their numbers. Lazy: nothing runs until the result is needed."""
        check_fitted(self, "_labels", "transform")
        self._check()
        numbers = {
            name: {label: number for number, label in enumerate(labels)} for name, labels in self._labels.items()
        }
        return check_shards(shards, "transform").transform_shard(
            _index_shard, column_pairs(self), numbers, self.handle_invalid
        )

    def fit_transform(self, shards: XShards) -> XShards:
        """Fit, then transform the same shards."""
        return self.fit(shards).transform(shards)

    def _check(self) -> None:
        if self.handle_invalid not in INVALID:
            raise ArgumentError(
                f"handle_invalid={self.handle_invalid!r}: expected one of {', '.join(map(repr, INVALID))}."
                + suggest(self.handle_invalid, INVALID)
            )


def _codes(values: Any, name: str) -> tuple[Array, list[Any]]:
    """Return a code per value, -1 for a missing one, and the distinct values by code."""
    pandas = frames.pandas()
    flat = values if kind_of(values) == "series" else np.asarray(values).ravel()
    try:
        codes, distinct = pandas.factorize(flat)
    except TypeError as error:
        raise DataError(f"Column {name!r} holds values that cannot be labels: {error}.") from error
    return np.asarray(codes), pandas.Index(distinct).tolist()


def _label_counts(values: Any, name: str) -> dict[Any, int]:
    codes, distinct = _codes(values, name)
    counts = np.bincount(codes[codes >= 0], minlength=len(distinct))
    return dict(zip(distinct, counts.tolist(), strict=True))


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


def _index_shard(shard: Shard, pairs: list[tuple[str, str]], numbers: dict[str, dict[Any, int]], invalid: str) -> Shard:
    columns: dict[str, Array] = {}
    valid: Array | None = None
    for source, target in pairs:
        values = column_of(shard, source, "inputCol")
        codes, distinct = _codes(values, source)
        # The code -1 of missing values selects the last entry.
        table = np.array([*(numbers[source].get(label, -1) for label in distinct), -1])
        indices = table[codes].reshape(values.shape)
        if invalid == "error" and (indices < 0).any():
            unseen = [label for label in distinct if label not in numbers[source]]
            raise _unseen(unseen, source, list(numbers[source]))
        if invalid == "skip":
            valid_here = np.asarray((indices >= 0).all(axis=tuple(range(1, indices.ndim))))
            valid = valid_here if valid is None else valid & valid_here
        columns[target] = np.where(indices < 0, len(numbers[source]), indices)
    result = with_columns(shard, columns)
    if valid is None:
        return result
    result = pick_rows(result, np.flatnonzero(valid))
    return result.reset_index(drop=True) if kind_of(result) == "frame" else result


def _unseen(unseen: list[Any], name: str, labels: list[Any]) -> DataError:
    if not unseen:
        return DataError(f"Column {name!r} has a missing label. Fill it, or use handle_invalid='keep' or 'skip'.")
    shown = ", ".join(map(repr, labels[:5])) + (", …" if len(labels) > 5 else "")
    return DataError(
        f"The label {unseen[0]!r} in column {name!r} was not seen in fit. Labels: {shown}."
        + suggest(str(unseen[0]), map(str, labels))
        + " Fit again, or use handle_invalid='keep' or 'skip'."
    )
