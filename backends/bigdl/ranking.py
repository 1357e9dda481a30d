"""Validation methods of rankings, which need all rows in the order of the data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from orca.backends.bigdl.validation import Array, ValidationMethod, only_output
from orca.core.arguments import check_count
from orca.errors import DataError
from orca.metrics import State


class _AllRows(ValidationMethod):
    """A value that needs all rows, in the order of the data."""

    def value(self, target: Array, output: Array) -> float:
        """Return the result over all rows."""
        raise NotImplementedError

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        # Copied, because frameworks return views of buffers that the next batch overwrites.
        state.setdefault("targets", []).append(np.array(target))
        state.setdefault("outputs", []).append(np.array(only_output(output)))
        return state

    def merge(self, states: Iterable[State]) -> State:
        total: State = {"targets": [], "outputs": []}
        for state in states:
            for name in total:
                total[name] = [*total[name], *state.get(name, ())]
        return total

    def compute(self, state: State) -> float:
        if not state.get("targets"):
            return float("nan")
        return self.value(np.concatenate(state["targets"]), np.concatenate(state["outputs"]))


class _Ranking(_AllRows):
    """A value of the rank of one positive item among `neg_num` negative ones; these rows follow each other."""

    def __init__(self, k: int = 10, neg_num: int = 100, bigdl_type: str = "float") -> None:
        self.k, self.neg_num = check_count("k", k), check_count("neg_num", neg_num)

    def total(self, rows: int) -> int:
        return rows // (self.neg_num + 1)

    def ranks(self, target: Array, output: Array) -> Array:
        """Return the rank of each group's positive item, from 1."""
        size = self.neg_num + 1
        if output.size != target.size or target.size % size:
            raise DataError(
                f"{self.name} received {output.size} outputs and {target.size} labels; expected groups of {size} rows: "
                f"one positive item and neg_num={self.neg_num} negative ones."
            )
        scores, labels = output.reshape(-1, size), target.reshape(-1, size)
        positive = labels == 1
        if (positive.sum(axis=1) != 1).any():
            group = int(np.argmax(positive.sum(axis=1) != 1))
            raise DataError(
                f"{self.name}: group {group} (rows {group * size} to {(group + 1) * size - 1}) has "
                f"{int(positive[group].sum())} positive items; expected one label 1 in each group."
            )
        return np.asarray((scores > scores[positive][:, None]).sum(axis=1) + 1)


class HitRatio(_Ranking):
    """The share of groups whose positive item is among the `k` largest outputs.

    Args:
        k: The length of the list.
        neg_num: The number of negative items in each group of rows.
    """

    name = "HitRatio"

    def value(self, target: Array, output: Array) -> float:
        return float((self.ranks(target, output) <= self.k).mean())


class NDCG(_Ranking):
    """The normalized discounted cumulative gain: 1 / log2(rank + 1) of the positive item, 0 below rank `k`.

    Args:
        k: The length of the list.
        neg_num: The number of negative items in each group of rows.
    """

    name = "NDCG"

    def value(self, target: Array, output: Array) -> float:
        ranks = self.ranks(target, output)
        return float(np.where(ranks <= self.k, np.log(2) / np.log(ranks + 1.0), 0.0).mean())


class MeanAveragePrecision(_AllRows):
    """The mean over classes, *from 0*, of the average precision among the `k` rows with the largest outputs.

    Args:
        k: The number of rows.
        classes: The number of classes.
    """

    def __init__(self, k: int, classes: int, bigdl_type: str = "float") -> None:
        self.k, self.classes = check_count("k", k), check_count("classes", classes)
        self.name = f"MAP@{self.k}"

    def total(self, rows: int) -> int:
        return 1

    def value(self, target: Array, output: Array) -> float:
        labels = target.reshape(-1)
        if output.ndim != 2 or len(output) != len(labels) or output.shape[1] < self.classes:
            raise DataError(
                f"{self.name} received outputs of shape {output.shape} and labels of shape {target.shape}; expected "
                f"({len(labels)}, {self.classes}) outputs."
            )
        wrong_ones = (labels < 0) | (labels >= self.classes) | (labels != np.floor(labels))
        if wrong_ones.any():
            row = int(np.argmax(wrong_ones))
            raise DataError(
                f"{self.name}: the label {labels[row]} in row {row} is no class; expected 0 to {self.classes - 1}."
            )
        return float(np.mean([self._precision(labels == kind, output[:, kind]) for kind in range(self.classes)]))

    def _precision(self, positive: Array, scores: Array) -> float:
        count = int(positive.sum())
        if not count:
            return 0.0
        hits = positive[np.argsort(-scores, kind="stable")[: self.k]]
        precisions = (np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits]
        # The best precision at each recall or beyond it, as in the VOC challenge.
        best = np.maximum.accumulate(precisions[::-1])[::-1]
        return float(best.sum() / count)
