"""Exact metrics on numpy arrays: each rank accumulates a state, and the merged state yields one number."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orca.core.arguments import shown
from orca.core.metric_order import output_first
from orca.errors import ArgumentError, DataError, suggest

Array: TypeAlias = NDArray[Any]
State: TypeAlias = dict[str, Any]  # numbers and arrays of counts are summed, lists of arrays are concatenated
Adapt: TypeAlias = "Callable[[object], Metric | list[Metric] | None]"

RESERVED = ("loss", "epoch", "lr", "rows", "seconds", "rows_per_s")
ALIASES = {  # compared without case and punctuation
    "accuracy": "acc top1 categoricalaccuracy sparsecategoricalaccuracy accuracyscore",
    "top5_accuracy": "topkcategoricalaccuracy sparsetopkcategoricalaccuracy",
    "mae": "meanabsoluteerror l1",
    "mse": "meansquarederror l2",
    "rmse": "rootmeansquarederror",
    "r2": "r2score rsquared",
    "precision": "precisionscore",
    "recall": "recallscore",
    "f1": "f1score",
    "auc": "rocauc aucroc auroc rocaucscore",
}


class Metric(ABC):
    """A stateless definition of a metric; the rows seen so far are in a state that can be pickled and merged.

    A metric of your own sets ``name`` and defines ``update`` and ``compute``. Numbers and arrays in the state are
    summed and lists are concatenated; anything else needs a ``merge``.

    >>> metric, batches = Accuracy(), [([1, 0], [0.9, 0.2]), ([1], [0.1])]
    >>> states = [metric.update(metric.empty(), target, output) for target, output in batches]
    >>> round(metric.compute(metric.merge(states)), 4)
    0.6667
    """

    name: str

    def empty(self) -> State:
        """Return the state before the first row."""
        return {}

    @abstractmethod
    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        """Add one batch to a state.

        Args:
            state: State to update in place.
            target: Targets, one per row.
            output: Model outputs, one per row.

        Returns:
            The updated state.
        """

    @abstractmethod
    def compute(self, state: State) -> float:
        """Return the value of a state; nan if it holds no rows."""

    def merge(self, states: Iterable[State]) -> State:
        """Return one state for the rows of all ``states``, which are not modified."""
        total = self.empty()
        for state in states:
            _add(total, state)
        return total


@dataclass(frozen=True)
class Accuracy(Metric):
    """The fraction of rows whose class is among the ``top`` largest scores.

    Args:
        name: Name in the results.
        top: Number of largest scores to consider.
        threshold: Decision threshold of outputs with a single score.
        class_axis: Class axis (1 or -1) of outputs whose shape allows both layouts.
        ignore_class: Padding class to exclude.
        elementwise: Whether every element is a binary decision, as for masks or several labels per row.
    """

    name: str = "accuracy"
    top: int = 1
    threshold: float = 0.5
    class_axis: int = -1
    ignore_class: int | None = None
    elementwise: bool = False

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        if self.elementwise:
            target, output = (array.reshape(-1) for array in _aligned(self.name, target, output))
        labels, scores = _labels_and_scores(self.name, target, output, self.class_axis, self.ignore_class)
        correct = labels == _decide(scores, self.threshold)
        if self.top > 1 and scores.shape[1] > 1:
            score = np.take_along_axis(scores, labels[:, None], axis=1)
            tied_before = (scores == score) & (np.arange(scores.shape[1]) < labels[:, None])
            # No score is larger than nan, so a diverged model would look perfect without the second term.
            correct = (((scores > score) | tied_before).sum(axis=1) < self.top) & ~np.isnan(score[:, 0])
        return _add(state, {"sum": int(correct.sum()), "count": labels.size})

    def compute(self, state: State) -> float:
        return state["sum"] / state["count"] if state.get("count") else float("nan")


@dataclass(frozen=True)
class ClassScore(Metric):
    """F1, precision or recall, of class 1 or over all classes that occur.

    Args:
        name: Name in the results.
        weight: Weight of precision in the harmonic mean: 0.5 is F1, 1 precision, 0 recall.
        average: "binary" for class 1, or "macro" or "micro" over all classes.
        threshold: Decision threshold of outputs with a single score.
        class_axis: Class axis (1 or -1) of outputs whose shape allows both layouts.
        ignore_class: Padding class to exclude.
    """

    name: str = "f1"
    weight: float = 0.5
    average: Literal["binary", "macro", "micro"] = "binary"
    threshold: float = 0.5
    class_axis: int = -1
    ignore_class: int | None = None

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        labels, scores = _labels_and_scores(self.name, target, output, self.class_axis, self.ignore_class)
        predicted = _decide(scores, self.threshold)
        classes = int(max(2, scores.shape[1], labels.max(initial=0) + 1, predicted.max(initial=0) + 1))
        if classes > 2 and self.average == "binary":
            raise DataError(
                f"{self.name} is for two classes and received {classes}. "
                "Add _macro or _micro to the name, or use orca.metrics.ClassScore(average='macro')."
            )
        groups = (labels[labels == predicted], predicted, labels)
        return _add(state, {"counts": np.stack([np.bincount(group, minlength=classes) for group in groups])})

    def compute(self, state: State) -> float:
        counts = state.get("counts", np.zeros((3, 2), np.int64))
        if self.average == "macro":
            hits, predicted, labels = counts[:, counts[1:].any(axis=0)]
        else:
            hits, predicted, labels = counts[:, 1] if self.average == "binary" else counts.sum(axis=1)
        # The weighted harmonic mean of precision and recall, without their own divisions by zero.
        total = self.weight * predicted + (1 - self.weight) * labels
        return float(np.mean(hits / np.where(total > 0, total, 1))) if counts.any() else float("nan")


@dataclass(frozen=True)
class MeanError(Metric):
    """The mean over all elements of a power of the absolute error.

    Args:
        name: Name in the results.
        power: Exponent of the absolute error.
        root: Whether to take the square root of the mean.
    """

    name: str = "mae"
    power: int = 1
    root: bool = False

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        targets, outputs = _aligned(self.name, target, output, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # the result shows inf and nan
            error = np.abs(targets - outputs) ** self.power
        return _add(state, {"sum": float(error.sum()), "count": error.size})

    def compute(self, state: State) -> float:
        mean = state["sum"] / state["count"] if state.get("count") else float("nan")
        return float(mean**0.5) if self.root else mean


@dataclass(frozen=True)
class R2(Metric):
    """The coefficient of determination, averaged over columns; constant columns score 1 if exact, else 0."""

    name: str = "r2"

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        targets, outputs = _aligned(self.name, target, output, np.float64)
        rows = len(targets)
        if not rows:
            return state
        targets, outputs = targets.reshape(rows, -1), outputs.reshape(rows, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, residual = targets.mean(axis=0), ((targets - outputs) ** 2).sum(axis=0)
            batch = {"rows": rows, "mean": mean, "residual": residual}
            batch |= {
                "spread": ((targets - mean) ** 2).sum(axis=0),
                "low": targets.min(axis=0),
                "high": targets.max(axis=0),
            }
            state.update(self.merge([state, batch]))
        return state

    def merge(self, states: Iterable[State]) -> State:
        total: State = {}
        for state in states:
            old, total = total, dict(state or total)
            if old and state:
                # Sums of squares lose all digits when the mean is far from zero; these pairwise terms do not.
                total["rows"] += old["rows"]
                share, step = state["rows"] / total["rows"], state["mean"] - old["mean"]
                total["mean"] = old["mean"] + step * share
                total["spread"] = old["spread"] + state["spread"] + step**2 * share * old["rows"]
                total["residual"] = old["residual"] + state["residual"]
                total["low"] = np.minimum(old["low"], state["low"])
                total["high"] = np.maximum(old["high"], state["high"])
        return total

    def compute(self, state: State) -> float:
        if state.get("rows", 0) < 2:
            return float("nan")
        # Rounding the mean gives a constant column some spread, so compare its minimum and maximum instead.
        constant, residual = state["low"] == state["high"], state["residual"]
        share = residual / np.where(constant, 1.0, state["spread"])
        return float(np.mean(1.0 - np.where(constant, residual > 0, share)))


@dataclass(frozen=True)
class FunctionMetric(Metric):
    """A metric computed by one call of a function with all targets and all outputs.

    >>> worst = FunctionMetric(lambda target, output: abs(target - output).max(), "worst")
    >>> worst.compute(worst.merge([worst.update({}, [1.0], [1.5]), worst.update({}, [2.0], [5.0])]))
    3.0

    Args:
        fn: Function ``fn(targets, outputs)`` of two arrays that returns a number.
        name: Name in the results.
        output_first: Whether it is ``fn(outputs, targets)``. In ``metrics=`` the names of its parameters decide.
    """

    fn: Callable[[Array, Array], Any]
    name: str
    output_first: bool = False

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        # Copied, because frameworks return views of buffers that the next batch overwrites.
        targets, outputs = (array.copy() for array in _paired(self.name, target, output))
        return _add(state, {"targets": [targets], "outputs": [outputs]}) if len(targets) else state

    def compute(self, state: State) -> float:
        if not state.get("targets"):
            return float("nan")
        arrays = np.concatenate(state["targets"]), np.concatenate(state["outputs"])
        return float(self.fn(*reversed(arrays)) if self.output_first else self.fn(*arrays))


def roc_auc(target: ArrayLike, output: ArrayLike, class_axis: int = -1) -> float:
    """Return the area under the ROC curve; with more than two classes, the mean of one class against the rest.

    >>> roc_auc([0, 1, 0, 1], [0.1, 0.4, 0.4, 0.8])
    0.875

    Args:
        target: Class numbers, one-hot rows, or several labels per row.
        output: One score per row or per class. Scores of classes outside 0..1 are logits, and normalized by row.
        class_axis: Class axis (1 or -1) of outputs whose shape allows both layouts.

    Returns:
        The area. Columns whose targets are all the same are skipped; nan if none remains or a score is nan.

    Raises:
        DataError: If the shapes do not match or the targets are not class numbers.
    """
    labels, scores = _labels_and_scores("auc", target, output, class_axis, several=True)
    if labels.ndim == 1:
        if scores.shape[1] > 1 and (scores.min() < 0 or scores.max() > 1):
            scores = scores - scores.max(axis=1, keepdims=True).astype(np.float64)
            scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        first = 1 if scores.shape[1] <= 2 else 0
        scores = scores[:, -1:] if first else scores
        labels = labels[:, None] == first + np.arange(scores.shape[1])
    areas = []
    for positive, score in zip(labels.T > 0, scores.T, strict=True):
        _, position, ties = np.unique(score, return_inverse=True, return_counts=True)
        count, twice_rank = int(positive.sum()), (2 * np.cumsum(ties) - ties + 1)[position]
        if 0 < count < len(positive):
            wins = int(twice_rank[positive].sum()) - count * (count + 1)
            areas.append(wins / (2 * count * (len(positive) - count)))
    return float(np.mean(areas)) if areas and not np.isnan(scores).any() else float("nan")


def resolve(spec: object, adapt: Adapt | None = None, class_axis: int = -1) -> list[Metric]:
    """Turn the argument ``metrics=`` into metrics.

    >>> [metric.name for metric in resolve(["acc", "MeanAbsoluteError", {"close": Accuracy(top=3)}])]
    ['accuracy', 'mae', 'close']

    Args:
        spec: A name, a metric, a function of (target, output) or by its parameters' names of (output, target), a list
            or dict of these, or None.
        adapt: Translates the framework's own objects; returns None for anything else.
        class_axis: The framework's class axis.

    Returns:
        One metric per name.

    Raises:
        ArgumentError: If a metric is unknown, or a name is reserved or occurs twice.
    """
    metrics = [] if spec is None else _flatten(spec, adapt or (lambda item: None), _built_in(class_axis))
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1 or name in RESERVED:
            why = "is a reserved name" if name in RESERVED else "occurs twice"
            raise ArgumentError(f"metrics={shown(spec)}: {name!r} {why}. Rename it: metrics={{'my_name': ...}}.")
    return metrics


def for_logits(metrics: Iterable[Metric]) -> list[Metric]:
    """Move the decision threshold of metrics from 0.5 to 0, for a model whose outputs are logits.

    >>> for_logits([Accuracy()])[0].threshold
    0.0
    """
    return [
        replace(metric, threshold=0.0) if getattr(metric, "threshold", None) == 0.5 else metric  # type: ignore[type-var]
        for metric in metrics
    ]


def _flatten(spec: Any, adapt: Adapt, built_in: dict[str, Metric], name: str = "") -> list[Metric]:
    if isinstance(spec, Metric):
        return [spec]
    if isinstance(spec, (list, tuple)):
        return [metric for item in spec for metric in _flatten(item, adapt, built_in)]
    if isinstance(spec, Mapping):
        named = []
        for key, item in spec.items():
            group = _flatten(item, adapt, built_in, str(key))
            named += [_rename(metric, f"{key}_{metric.name}" if len(group) > 1 else key) for metric in group]
        return named
    if isinstance(spec, str) and (metric := _by_name(spec, built_in)):
        return [metric]
    if (adapted := adapt(spec)) is not None:
        return adapted if isinstance(adapted, list) else [adapted]
    if isinstance(spec, type) and issubclass(spec, Metric):
        return [spec()]
    if callable(spec) and not isinstance(spec, type):
        name = name or getattr(getattr(spec, "func", spec), "__name__", "<lambda>")
        if name == "<lambda>":
            raise ArgumentError(f"metrics={shown(spec)} has no name. Give it one: metrics={{'my_name': ...}}.")
        return [FunctionMetric(spec, name, output_first(spec))]
    hint = suggest(spec.lower(), built_in) if isinstance(spec, str) else ""
    raise ArgumentError(
        f"metrics={shown(spec)} is not known.{hint} Known: {', '.join(built_in)}, top<k>_accuracy, a function of "
        "(target, output), an orca.metrics.Metric, or a list or dict of these."
    )


def _built_in(class_axis: int) -> dict[str, Metric]:
    metrics: list[Metric] = [
        Accuracy(class_axis=class_axis),
        Accuracy("binary_accuracy", elementwise=True),
        Accuracy("top5_accuracy", top=5, class_axis=class_axis),
        MeanError("mae"),
        MeanError("mse", power=2),
        MeanError("rmse", power=2, root=True),
        R2(),
        FunctionMetric(partial(roc_auc, class_axis=class_axis), "auc"),
    ]
    for name, weight in {"precision": 1.0, "recall": 0.0, "f1": 0.5}.items():
        metrics.append(ClassScore(name, weight, class_axis=class_axis))
        metrics.append(ClassScore(f"{name}_macro", weight, "macro", class_axis=class_axis))
        metrics.append(ClassScore(f"{name}_micro", weight, "micro", class_axis=class_axis))
    return {metric.name: metric for metric in metrics}


def _by_name(text: str, built_in: dict[str, Metric]) -> Metric | None:
    word = re.sub("[^a-z0-9]", "", text.lower())
    for name, metric in built_in.items():
        if word == name.replace("_", "") or word in ALIASES.get(name, "").split():
            return metric
    if match := re.fullmatch("top([1-9][0-9]*)(acc|accuracy)?", word):
        return replace(cast(Accuracy, built_in["accuracy"]), name=f"top{match[1]}_accuracy", top=int(match[1]))
    return None


def _rename(metric: Metric, name: str) -> Metric:
    renamed = copy.copy(metric)
    object.__setattr__(renamed, "name", name)  # built-in metrics are frozen
    return renamed


def _add(state: State, more: State) -> State:
    """Add one state to another, in place."""
    for key, value in more.items():
        if isinstance(value, list):
            state.setdefault(key, []).extend(value)
        elif key in state and isinstance(value, np.ndarray):
            # Ranks may have seen different numbers of classes.
            wide, narrow = sorted((state[key], value), key=lambda counts: -counts.shape[-1])
            state[key] = wide.copy()
            state[key][..., : narrow.shape[-1]] += narrow
        else:
            state[key] = state[key] + value if key in state else value
    return state


def _paired(name: str, target: ArrayLike, output: ArrayLike) -> tuple[Array, Array]:
    """Return targets and outputs as arrays of the same length."""
    targets, outputs = np.atleast_1d(target), np.atleast_1d(output)
    if len(targets) != len(outputs):
        raise DataError(f"{name}: received {len(targets)} rows of targets and {len(outputs)} rows of outputs.")
    return targets, outputs


def _aligned(name: str, target: ArrayLike, output: ArrayLike, dtype: Any = None) -> tuple[Array, Array]:
    """Return targets and outputs as arrays of the same shape."""
    # (n,) minus (n, 1) would broadcast to (n, n) and give a plausible, wrong number.
    targets, outputs = _paired(name, np.asarray(target, dtype), np.asarray(output, dtype))
    if len(targets) and [n for n in targets.shape[1:] if n != 1] != [n for n in outputs.shape[1:] if n != 1]:
        raise DataError(f"{name}: targets of shape {targets.shape} do not match outputs of shape {outputs.shape}.")
    return targets.reshape(outputs.shape) if len(targets) else outputs, outputs


def _labels_and_scores(
    name: str,
    target: ArrayLike,
    output: ArrayLike,
    class_axis: int = -1,
    ignore_class: int | None = None,
    several: bool = False,
) -> tuple[Array, Array]:
    """Return int64 labels, one per decision, and scores, decisions x classes (one column for binary decisions).

    With ``several``, targets with several ones per row are returned as a matrix shaped like the scores.
    """
    targets, outputs = _paired(name, target, output)
    if not len(targets):
        return np.zeros(0, np.int64), np.zeros((0, 1))
    outputs = outputs[:, None] if outputs.ndim == 1 else outputs
    axes = list(dict.fromkeys((class_axis % outputs.ndim, outputs.ndim - 1, 1)))
    shapes = {axis: (outputs.shape[:axis], outputs.shape[axis + 1 :]) for axis in axes}
    matches = [axis for axis, (a, b) in shapes.items() if targets.shape in (a + b, a + (1,) + b)]
    if not matches and targets.shape != outputs.shape:
        raise DataError(f"{name}: targets of shape {targets.shape} do not match outputs of shape {outputs.shape}.")
    axis = (matches or axes)[0]
    scores = np.moveaxis(outputs, axis, -1).reshape(-1, outputs.shape[axis])
    if not matches:
        ones = np.moveaxis(targets, axis, -1).reshape(scores.shape)
        one_hot = np.allclose(ones.sum(axis=1), 1, atol=1e-3)
        if several and not one_hot:
            return ones, scores
        if not one_hot:
            raise DataError(
                f"{name}: targets shaped like outputs, {targets.shape}, must be one-hot: rows that sum to 1. "
                "Use class numbers, or metrics='binary_accuracy' for a binary decision per element."
            )
        labels = ones.argmax(axis=1)
    else:
        labels = targets.reshape(-1).astype(np.int64)
        if (labels != targets.reshape(-1)).any():
            raise DataError(f"{name}: targets must be class numbers. Received {targets.reshape(-1)[:5]}.")
    if ignore_class is not None:
        labels, scores = labels[labels != ignore_class], scores[labels != ignore_class]
    low, high = labels.min(initial=0), labels.max(initial=0)
    if low < 0 or high >= scores.shape[1] > 1:
        raise DataError(
            f"{name}: targets from {low} to {high} do not match {scores.shape[1]} columns of scores. Classes "
            "count from 0; orca.metrics.Accuracy(ignore_class=...) excludes a padding class."
        )
    return labels, scores


def _decide(scores: Array, threshold: float) -> Array:
    """Return the predicted class of each row."""
    column: Array = scores[:, 0]
    if scores.shape[1] > 1:
        column = scores.argmax(axis=1)
    elif scores.dtype.kind not in "iu":  # integers are decisions already
        column = column > threshold
    return column.astype(np.int64)
