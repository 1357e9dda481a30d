"""Validation methods with the names of BigDL: metrics whose class numbers count from 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from orca.backends.bigdl.criteria_classes import ClassNLLCriterion
from orca.backends.bigdl.criterion import Criterion
from orca.core.arguments import wrong
from orca.errors import DataError
from orca.metrics import Metric, State

Array: TypeAlias = NDArray[Any]


class ValidationMethod(Metric):
    """A metric of outputs and labels, exact over all rows of all workers."""

    def total(self, rows: int) -> int:
        """Return how many values the result is a mean of, for this many rows."""
        return rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Mean(ValidationMethod):
    """The mean of a value per row."""

    def values(self, target: Array, output: Array) -> Array:
        """Return the value of each row."""
        raise NotImplementedError

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        values = self.values(np.asarray(target), only_output(output))
        state["sum"] = state.get("sum", 0.0) + float(values.sum())
        state["count"] = state.get("count", 0) + int(values.size)
        return state

    def compute(self, state: State) -> float:
        return state["sum"] / state["count"] if state.get("count") else float("nan")


class Top1Accuracy(_Mean):
    """The share of rows whose label, from 1, is the class with the largest output.

    An output with a single value per row decides between the labels 0 and 1, with the threshold 0.5.

    >>> metric = Top1Accuracy()
    >>> metric.compute(metric.update({}, [1, 2], [[0.9, 0.1], [0.8, 0.2]]))
    0.5
    """

    name = "Top1Accuracy"

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def values(self, target: Array, output: Array) -> Array:
        labels, scores = _labels_and_scores(self.name, target, output)
        if scores.shape[-1] == 1:
            return np.asarray((scores[:, 0] >= 0.5) == (labels == 1))
        return np.asarray(scores.argmax(axis=-1) + 1 == labels)


class Top5Accuracy(_Mean):
    """The share of rows whose label, from 1, is among the five classes with the largest outputs."""

    name = "Top5Accuracy"

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def values(self, target: Array, output: Array) -> Array:
        labels, scores = _labels_and_scores(self.name, target, output)
        best = np.argsort(-scores, axis=-1, kind="stable")[:, :5] + 1
        return np.asarray((best == labels[:, None]).any(axis=-1))


class TreeNNAccuracy(Top1Accuracy):
    """The share of trees whose root, the first node, has the right class."""

    name = "TreeNNAccuracy"

    def values(self, target: Array, output: Array) -> Array:
        if output.ndim != 3 or target.ndim < 2:
            raise DataError(
                f"TreeNNAccuracy received outputs of shape {output.shape} and labels of shape {target.shape}; expected "
                "(rows, nodes, classes) and (rows, nodes)."
            )
        return super().values(target.reshape(len(target), -1)[:, 0], output[:, 0])


class MAE(_Mean):
    """The mean of the absolute differences of outputs and labels."""

    name = "MAE"

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def values(self, target: Array, output: Array) -> Array:
        if output.size != target.size:
            raise DataError(f"MAE received outputs of shape {output.shape} and labels of shape {target.shape}.")
        errors = np.abs(output.astype(np.float64) - target.reshape(output.shape)).reshape(len(output), -1)
        return np.asarray(errors.mean(axis=1))


class Loss(ValidationMethod):
    """A criterion as a metric, over all rows.

    Args:
        cri: The criterion; by default `ClassNLLCriterion`.
    """

    name = "Loss"

    def __init__(self, cri: Criterion | None = None, bigdl_type: str = "float") -> None:
        cri = ClassNLLCriterion() if cri is None else cri
        if not isinstance(cri, Criterion):
            raise wrong("cri", cri, "a criterion, such as MSECriterion()")
        self.criterion = cri

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        labels, outputs = _floats(target), _floats(output)
        weights = self.criterion.row_weight(labels)
        rows = float(len(_leaf(labels)))
        count = rows if weights is None or self.criterion.reduction == "sum" else float(weights.sum())
        with torch.no_grad():
            value = float(self.criterion.loss(outputs, labels)) if count else 0.0
        state["sum"] = state.get("sum", 0.0) + value * (1.0 if self.criterion.reduction == "sum" else count)
        state["count"] = state.get("count", 0.0) + count
        return state

    def compute(self, state: State) -> float:
        return state["sum"] / state["count"] if state.get("count") else float("nan")


class FromOne(Metric):
    """A metric of Orca, whose classes count from 0, for labels that count from 1; padded rows do not count."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self.name = metric.name

    def empty(self) -> State:
        return self._metric.empty()

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        labels, scores = np.asarray(target), np.asarray(output)
        known = labels.reshape(len(labels), -1).min(axis=1) >= 1
        return self._metric.update(state, (labels[known] - 1).astype(np.int64), scores[known])

    def compute(self, state: State) -> float:
        return self._metric.compute(state)

    def merge(self, states: Iterable[State]) -> State:
        return self._metric.merge(states)


class EvaluatedResult:
    """The result of a validation method.

    Args:
        result: The value.
        total_num: How many values it is a mean of.
        method: The name of the method.
    """

    def __init__(self, result: float, total_num: int, method: str) -> None:
        self.result, self.total_num, self.method = result, total_num, method

    def __str__(self) -> str:
        return f"Evaluated result: {self.result}, total_num: {self.total_num}, method: {self.method}"

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return EvaluatedResult, (self.result, self.total_num, self.method)


def only_output(output: Any) -> Array:
    """Return the only output as an array."""
    if isinstance(output, list | tuple) and any(isinstance(part, np.ndarray) for part in output):
        raise DataError(f"The model has {len(output)} outputs; a validation method is for one.")
    return np.asarray(output)


def _labels_and_scores(name: str, target: Array, output: Array) -> tuple[Array, Array]:
    """Return one label and one row of scores for each decision."""
    scores = output.reshape(-1, output.shape[-1]) if output.ndim > 1 else output.reshape(-1, 1)
    labels = target.reshape(-1)
    if len(labels) != len(scores):
        raise DataError(
            f"{name} received outputs of shape {output.shape} and labels of shape {target.shape}; expected one label "
            "for each row of outputs."
        )
    return labels, scores


def _floats(tree: Any) -> Any:
    if isinstance(tree, list | tuple) and any(isinstance(part, np.ndarray | list | tuple) for part in tree):
        return [_floats(part) for part in tree]
    return torch.from_numpy(np.array(tree, dtype=np.float32))


def _leaf(tree: Any) -> Any:
    return _leaf(tree[0]) if isinstance(tree, list) else tree
