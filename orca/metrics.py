"""Exact metrics on numpy arrays: ranks keep states, states merge, and the merged state gives one number."""

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

from orca.errors import ArgumentError, DataError, suggest

Array: TypeAlias = NDArray[Any]
State: TypeAlias = dict[str, Any]  # numbers and arrays of counts (they add up), lists of arrays (they join)
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
    """A recipe without memory: what was seen is in the state, which pickles and merges.

    A metric of your own sets ``name`` and defines ``update`` and ``compute``; a state made of numbers,
    arrays that add up and lists of arrays needs no ``merge``.

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
        """Add one batch to ``state``, in place, and return it."""

    @abstractmethod
    def compute(self, state: State) -> float:
        """Return the value; nan when the state holds no rows."""

    def merge(self, states: Iterable[State]) -> State:
        """Return the state of all rows in ``states``, which stay as they are."""
        total = self.empty()
        for state in states:
            _add(total, state)
        return total


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of rows whose class is among the ``top`` largest scores (one score: is above ``threshold``).

    ``class_axis`` (1 or -1) settles outputs whose shape allows both layouts, ``ignore_class`` leaves out a
    padding class, and ``elementwise`` makes every element a yes/no question (several labels in a row, masks).
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
        labels, scores = _table(self.name, target, output, self.class_axis, self.ignore_class)
        right = labels == _decide(scores, self.threshold)
        if self.top > 1 and scores.shape[1] > 1:
            own = np.take_along_axis(scores, labels[:, None], axis=1)
            earlier = (scores == own) & (np.arange(scores.shape[1]) < labels[:, None])
            # Nothing is larger than nan, so a diverged model would look perfect without the second term.
            right = (((scores > own) | earlier).sum(axis=1) < self.top) & ~np.isnan(own[:, 0])
        return _add(state, {"sum": int(right.sum()), "count": labels.size})

    def compute(self, state: State) -> float:
        return state["sum"] / state["count"] if state.get("count") else float("nan")


@dataclass(frozen=True)
class ClassScore(Metric):
    """F1 (``weight`` 0.5), precision (1) or recall (0) of class 1, or of all classes met (macro, micro)."""

    name: str = "f1"
    weight: float = 0.5
    average: Literal["binary", "macro", "micro"] = "binary"
    threshold: float = 0.5
    class_axis: int = -1
    ignore_class: int | None = None

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        labels, scores = _table(self.name, target, output, self.class_axis, self.ignore_class)
        decided = _decide(scores, self.threshold)
        classes = int(max(2, scores.shape[1], labels.max(initial=0) + 1, decided.max(initial=0) + 1))
        if classes > 2 and self.average == "binary":
            raise DataError(
                f"{self.name} is for two classes and received {classes}. "
                "Add _macro or _micro to the name, or use orca.metrics.ClassScore(average='macro')."
            )
        groups = (labels[labels == decided], decided, labels)
        return _add(state, {"counts": np.stack([np.bincount(group, minlength=classes) for group in groups])})

    def compute(self, state: State) -> float:
        counts = state.get("counts", np.zeros((3, 2), np.int64))
        if self.average == "macro":
            hits, decided, labels = counts[:, counts[1:].any(axis=0)]
        else:
            hits, decided, labels = counts[:, 1] if self.average == "binary" else counts.sum(axis=1)
        # The weighted harmonic mean of precision and recall, without their own divisions by zero.
        whole = self.weight * decided + (1 - self.weight) * labels
        return float(np.mean(hits / np.where(whole > 0, whole, 1))) if counts.any() else float("nan")


@dataclass(frozen=True)
class MeanError(Metric):
    """The mean over all elements of the absolute error to the ``power``, or the square ``root`` of that."""

    name: str = "mae"
    power: int = 1
    root: bool = False

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        true, given = _aligned(self.name, target, output, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # inf and nan speak for themselves
            error = np.abs(true - given) ** self.power
        return _add(state, {"sum": float(error.sum()), "count": error.size})

    def compute(self, state: State) -> float:
        mean = state["sum"] / state["count"] if state.get("count") else float("nan")
        return float(mean**0.5) if self.root else mean


@dataclass(frozen=True)
class R2(Metric):
    """The coefficient of determination, averaged over columns; a constant column scores 1 if met, else 0."""

    name: str = "r2"

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        true, given = _aligned(self.name, target, output, np.float64)
        if not len(true):
            return state
        true, given = true.reshape(len(true), -1), given.reshape(len(true), -1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, residual = true.mean(axis=0), ((true - given) ** 2).sum(axis=0)
            batch = {"rows": len(true), "mean": mean, "residual": residual}
            batch |= {
                "spread": ((true - mean) ** 2).sum(axis=0),
                "low": true.min(axis=0),
                "high": true.max(axis=0),
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
        # A rounded mean leaves a constant column some spread, so its range is asked instead.
        constant, residual = state["low"] == state["high"], state["residual"]
        share = residual / np.where(constant, 1.0, state["spread"])
        return float(np.mean(1.0 - np.where(constant, residual > 0, share)))


@dataclass(frozen=True)
class FunctionMetric(Metric):
    """A function of all targets and all outputs, called once at the end.

    >>> worst = FunctionMetric(lambda target, output: abs(target - output).max(), "worst")
    >>> worst.compute(worst.merge([worst.update({}, [1.0], [1.5]), worst.update({}, [2.0], [5.0])]))
    3.0
    """

    fn: Callable[[Array, Array], Any]
    name: str

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        # Copies, because frameworks hand out views of buffers that the next batch overwrites.
        true, given = (array.copy() for array in _rows(self.name, target, output))
        return _add(state, {"targets": [true], "outputs": [given]}) if len(true) else state

    def compute(self, state: State) -> float:
        if not state.get("targets"):
            return float("nan")
        return float(self.fn(np.concatenate(state["targets"]), np.concatenate(state["outputs"])))


def roc_auc(target: ArrayLike, output: ArrayLike, class_axis: int = -1) -> float:
    """Return the ROC area of one score, of column 1 of two, or the mean of each class against the rest.

    Scores of several classes outside 0..1 are logits, normalised by row first. A column whose rows all have
    one answer has no area and is left out; the result is nan if none is left or if a score is nan.

    >>> roc_auc([0, 1, 0, 1], [0.1, 0.4, 0.4, 0.8])
    0.875
    """
    labels, scores = _table("auc", target, output, class_axis, several=True)
    if labels.ndim == 1:
        if scores.shape[1] > 1 and (scores.min() < 0 or scores.max() > 1):
            scores = scores - scores.max(axis=1, keepdims=True).astype(np.float64)
            scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        first = 1 if scores.shape[1] <= 2 else 0
        scores = scores[:, -1:] if first else scores
        labels = labels[:, None] == first + np.arange(scores.shape[1])
    areas = []
    for yes, score in zip(labels.T > 0, scores.T, strict=True):
        _, place, ties = np.unique(score, return_inverse=True, return_counts=True)
        count, twice_rank = int(yes.sum()), (2 * np.cumsum(ties) - ties + 1)[place]
        if 0 < count < len(yes):
            wins = int(twice_rank[yes].sum()) - count * (count + 1)
            areas.append(wins / (2 * count * (len(yes) - count)))
    return float(np.mean(areas)) if areas and not np.isnan(scores).any() else float("nan")


def resolve(spec: object, adapt: Adapt | None = None, class_axis: int = -1) -> list[Metric]:
    """Turn what a user gives as ``metrics=`` into metrics.

    ``adapt`` translates a framework's own objects (None: not mine); ``class_axis`` is the framework's layout.

    >>> [metric.name for metric in resolve(["acc", "MeanAbsoluteError", {"close": Accuracy(top=3)}])]
    ['accuracy', 'mae', 'close']
    """
    metrics = _flatten(spec, adapt or (lambda item: None), _known(class_axis))
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1 or name in RESERVED:
            why = "is a name that every result has" if name in RESERVED else "is there twice"
            raise ArgumentError(f"metrics={spec!r}: {name!r} {why}. Rename it: metrics={{'my_name': ...}}.")
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


def _flatten(spec: Any, adapt: Adapt, known: dict[str, Metric], name: str = "") -> list[Metric]:
    if spec is None or isinstance(spec, Metric):
        return [] if spec is None else [spec]
    if isinstance(spec, (list, tuple)):
        return [metric for item in spec for metric in _flatten(item, adapt, known)]
    if isinstance(spec, Mapping):
        named = []
        for key, item in spec.items():
            group = _flatten(item, adapt, known, str(key))
            named += [_renamed(metric, f"{key}_{metric.name}" if len(group) > 1 else key) for metric in group]
        return named
    if isinstance(spec, str) and (metric := _by_name(spec, known)):
        return [metric]
    if (adapted := adapt(spec)) is not None:
        return adapted if isinstance(adapted, list) else [adapted]
    if isinstance(spec, type) and issubclass(spec, Metric):
        return [spec()]
    if callable(spec):
        name = name or getattr(getattr(spec, "func", spec), "__name__", "<lambda>")
        if name == "<lambda>":
            raise ArgumentError(f"metrics={spec!r} has no name. Give it one: metrics={{'my_name': ...}}.")
        return [FunctionMetric(spec, name)]
    hint = suggest(spec.lower(), known) if isinstance(spec, str) else ""
    raise ArgumentError(
        f"metrics={spec!r} is not known.{hint} Known: {', '.join(known)}, top<k>_accuracy, a function of "
        "(target, output), an orca.metrics.Metric, or a list or dict of these."
    )


def _known(class_axis: int) -> dict[str, Metric]:
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


def _by_name(text: str, known: dict[str, Metric]) -> Metric | None:
    word = re.sub("[^a-z0-9]", "", text.lower())
    for name, metric in known.items():
        if word == name.replace("_", "") or word in ALIASES.get(name, "").split():
            return metric
    if match := re.fullmatch("top([1-9][0-9]*)(acc|accuracy)?", word):
        return replace(cast(Accuracy, known["accuracy"]), name=f"top{match[1]}_accuracy", top=int(match[1]))
    return None


def _renamed(metric: Metric, name: str) -> Metric:
    twin = copy.copy(metric)
    object.__setattr__(twin, "name", name)  # the built-in ones are frozen
    return twin


def _add(state: State, more: State) -> State:
    for key, value in more.items():
        if isinstance(value, list):
            state.setdefault(key, []).extend(value)
        elif key in state and isinstance(value, np.ndarray):
            # Ranks may have met different numbers of classes.
            wide, narrow = sorted((state[key], value), key=lambda counts: -counts.shape[-1])
            state[key] = wide.copy()
            state[key][..., : narrow.shape[-1]] += narrow
        else:
            state[key] = state[key] + value if key in state else value
    return state


def _rows(name: str, target: ArrayLike, output: ArrayLike) -> tuple[Array, Array]:
    true, given = np.atleast_1d(target), np.atleast_1d(output)
    if len(true) != len(given):
        raise DataError(f"{name}: received {len(true)} rows of targets and {len(given)} rows of outputs.")
    return true, given


def _aligned(name: str, target: ArrayLike, output: ArrayLike, dtype: Any = None) -> tuple[Array, Array]:
    # (n,) minus (n, 1) would broadcast to (n, n) and give a plausible, wrong number.
    true, given = _rows(name, np.asarray(target, dtype), np.asarray(output, dtype))
    if len(true) and [n for n in true.shape[1:] if n != 1] != [n for n in given.shape[1:] if n != 1]:
        raise DataError(f"{name}: targets of shape {true.shape} do not fit outputs of shape {given.shape}.")
    return true.reshape(given.shape) if len(true) else given, given


def _table(
    name: str,
    target: ArrayLike,
    output: ArrayLike,
    class_axis: int = -1,
    ignore_class: int | None = None,
    several: bool = False,
) -> tuple[Array, Array]:
    """Return int64 labels, one a decision, and scores, decisions x classes (or one column for yes/no).

    With ``several``, targets with several ones in a row come back as a matrix like the scores.
    """
    true, given = _rows(name, target, output)
    if not len(true):
        return np.zeros(0, np.int64), np.zeros((0, 1))
    given = given[:, None] if given.ndim == 1 else given
    axes = list(dict.fromkeys((class_axis % given.ndim, given.ndim - 1, 1)))
    shapes = {axis: (given.shape[:axis], given.shape[axis + 1 :]) for axis in axes}
    fits = [axis for axis, (a, b) in shapes.items() if true.shape in (a + b, a + (1,) + b)]
    if not fits and true.shape != given.shape:
        raise DataError(f"{name}: targets of shape {true.shape} do not fit outputs of shape {given.shape}.")
    axis = (fits or axes)[0]
    scores = np.moveaxis(given, axis, -1).reshape(-1, given.shape[axis])
    if not fits:
        ones = np.moveaxis(true, axis, -1).reshape(scores.shape)
        one_hot = np.allclose(ones.sum(axis=1), 1, atol=1e-3)
        if several and not one_hot:
            return ones, scores
        if not one_hot:
            raise DataError(
                f"{name}: targets shaped like outputs, {true.shape}, have to be one-hot: rows that sum to 1. "
                "Use class numbers, or metrics='binary_accuracy' for a yes/no question per element."
            )
        labels = ones.argmax(axis=1)
    else:
        labels = true.reshape(-1).astype(np.int64)
        if (labels != true.reshape(-1)).any():
            raise DataError(f"{name}: targets have to be class numbers. Received {true.reshape(-1)[:5]}.")
    if ignore_class is not None:
        labels, scores = labels[labels != ignore_class], scores[labels != ignore_class]
    low, high = labels.min(initial=0), labels.max(initial=0)
    if low < 0 or high >= scores.shape[1] > 1:
        raise DataError(
            f"{name}: targets from {low} to {high} do not fit {scores.shape[1]} columns of scores. Classes "
            "count from 0; orca.metrics.Accuracy(ignore_class=...) leaves out a padding class."
        )
    return labels, scores


def _decide(scores: Array, threshold: float) -> Array:
    column: Array = scores[:, 0]
    if scores.shape[1] > 1:
        column = scores.argmax(axis=1)
    elif scores.dtype.kind not in "iu":  # integers are decisions already
        column = column > threshold
    return column.astype(np.int64)
