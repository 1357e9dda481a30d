"""Adapts torchmetrics objects to Orca's exact metrics, whose states are sent, merged and reduced to one number."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from orca.errors import ArgumentError, DataError
from orca.metrics import ALIASES, Metric, State

_PAIRWISE = {"dim_zero_sum": torch.add, "dim_zero_min": torch.minimum, "dim_zero_max": torch.maximum}
_SQUASH = {"sigmoid": torch.sigmoid, "softmax": functools.partial(torch.softmax, dim=1)}
# The attributes that every update changes, apart from the states.
_BOOKKEEPING = {"update", "compute", "_update_signature", "_update_count", "_computed", "_forward_cache"}


def adapt(metric: object) -> Metric | list[Metric] | None:
    """Convert a torchmetrics object or class to a metric, a MetricCollection to several; return None for the rest.

    >>> from torchmetrics import MeanSquaredError
    >>> metric = adapt(MeanSquaredError)
    >>> states = [metric.update(metric.empty(), [1.0, 2.0], [1.0, 4.0]), metric.update(metric.empty(), [5.0], [0.0])]
    >>> metric.name, round(metric.compute(metric.merge(states)), 4)
    ('mse', 9.6667)
    """
    instance = metric
    cls = metric.func if isinstance(metric, functools.partial) else metric
    if isinstance(cls, type) and (_is(cls, "Metric") or _is(cls, "MetricCollection")):
        try:
            instance = metric()  # type: ignore[operator]
        except Exception as error:
            raise ArgumentError(
                f"metrics={cls.__name__} cannot be created without arguments: {_first_line(error)}. "
                f"Give an object: metrics={cls.__name__}(...)."
            ) from error
    kind: Any = type(instance)
    if _is(kind, "MetricCollection"):
        return _members(instance)
    if not _is(kind, "Metric"):
        return None
    _check(instance)
    return TorchMetric(instance, _name(instance))


class TorchMetric(Metric):
    """A stateless torchmetrics object, with everything it has accumulated in a state of one of two forms.

    If all states of the object can be merged (by sum, concatenation, minimum or maximum), the state consists of these.
    Otherwise (a mean of parts is not the mean of the whole) the state holds the rows, and the object computes over all
    of them at once.
    """

    def __init__(self, metric: Any, name: str) -> None:
        self.name = name
        blank = copy.deepcopy(metric).to("cpu")
        blank.reset()
        for part in blank.modules():
            if _is(type(part), "Metric"):
                # Orca merges the states; in a process group torchmetrics would count every rank again.
                part.sync_on_compute = part._to_sync = False
        self._blank = blank
        self._scores = _scores(type(metric))
        self._keeps_rows = not _mergeable(blank) or bool(
            self._scores and any(isinstance(default, list) for default in blank._defaults.values())
        )

    def update(self, state: State, target: ArrayLike, output: ArrayLike) -> State:
        target_rows, output_rows = self._tensors(target, output)
        if not len(target_rows):
            return state
        if not self._keeps_rows and "targets" not in state:
            fresh = not state
            tracks = self._tracks(state, output_rows)
            updated = {track: self._updated(state.get(track), target_rows, scores) for track, scores in tracks.items()}
            odd = next((attribute for _, attribute in updated.values() if attribute), None)
            if odd is None:
                state.clear()
                state.update({track: states for track, (states, _) in updated.items()})
                return state
            if not fresh:
                raise DataError(
                    f"{self.name}: {self._class()} changed {odd!r} after its first update, so it cannot be merged "
                    "over workers. Declare it with add_state(..., dist_reduce_fx='sum')."
                )
        state.setdefault("targets", []).append(target_rows)
        state.setdefault("outputs", []).append(output_rows)
        return state

    def merge(self, states: Iterable[State]) -> State:
        parts = [state for state in states if state]
        if not parts:
            return {}
        shared = [key for key in parts[0] if all(key in part for part in parts)]
        if not shared:
            raise DataError(
                f"{self.name}: {self._class()} kept states of different kinds on different workers. "
                "Give all rows outputs of the same type."
            )
        if "targets" in shared:
            return {key: [tensor for part in parts for tensor in part[key]] for key in shared}
        return {track: self._joined([part[track] for part in parts]) for track in shared}

    def compute(self, state: State) -> float:
        if not state:
            return float("nan")
        if "targets" in state:
            metric = copy.deepcopy(self._blank)
            targets, outputs = torch.cat(state["targets"]), torch.cat(state["outputs"])
            self._feed(metric, targets, outputs)
        else:
            # Scores that were never outside 0..1 are probabilities; otherwise all of them were logits.
            metric = self._holding(copy.copy(self._blank), state.get("raw", state.get("squashed")))
        try:
            value = metric.compute()
        except Exception as error:
            raise DataError(f"{self.name}: {self._class()}.compute failed: {_first_line(error)}.") from error
        return self._number(value)

    def _tensors(self, target: ArrayLike, output: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        targets = self._tensor(target, "targets")
        outputs = self._tensor(output, "outputs")
        if len(targets) != len(outputs):
            raise DataError(f"{self.name}: received {len(targets)} rows of targets and {len(outputs)} rows of outputs.")
        # A single column may or may not have an axis of its own; torchmetrics expects equal shapes.
        if outputs.shape == (*targets.shape, 1):
            outputs = outputs.reshape(targets.shape)
        elif targets.shape == (*outputs.shape, 1):
            targets = targets.reshape(outputs.shape)
        if _from(type(self._blank), "classification", "segmentation"):
            # Losses such as BCELoss expect classes as floats; these metrics accept only integers.
            if targets.is_floating_point() and bool((targets == targets.round()).all()):
                targets = targets.to(torch.int64)
        return targets, outputs

    def _tensor(self, value: Any, what: str) -> torch.Tensor:
        nested = isinstance(value, dict) or (isinstance(value, tuple) and any(np.ndim(item) for item in value))
        array = np.atleast_1d(np.asarray(None if nested else value))
        if array.dtype.kind not in "biuf":
            received = type(value).__name__ if nested else array.dtype
            raise DataError(f"{self.name}: expected one array of numbers as {what} and received a {received}.")
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        # A copy, because frameworks return views of buffers that the next batch overwrites.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))

    def _tracks(self, state: State, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the scores under each interpretation that is still possible.

        torchmetrics treats scores as logits if any score in the same update is outside 0..1. One batch cannot decide
        this for all rows, so both interpretations are tracked until such a score occurs.
        """
        if not self._scores or not outputs.is_floating_point():
            return {"raw": outputs}
        tracks = {"squashed": _SQUASH[self._scores](outputs)}
        if bool(((outputs >= 0) & (outputs <= 1)).all()) and (not state or "raw" in state):
            tracks["raw"] = outputs
        return tracks

    def _updated(self, states: Any, targets: torch.Tensor, outputs: torch.Tensor) -> tuple[dict[str, Any], str | None]:
        """Return the states after one more batch, and another attribute that changed, which a merge would lose."""
        # The first time everything is copied, so that attributes other than the states change only in the copy.
        metric = self._holding(copy.copy(self._blank), states) if states else copy.deepcopy(self._blank)
        before = _fingerprints(metric)
        self._feed(metric, targets, outputs)
        after = _fingerprints(metric)
        odd = next((key for key in (*before, *after) if before.get(key) != after.get(key)), None)
        if odd is None:
            means = (key for key, fx in metric._reductions.items() if _reduction(fx) == "dim_zero_mean")
            odd = next((key for key in means if not torch.equal(getattr(metric, key), metric._defaults[key])), None)
        return {key: getattr(metric, key) for key in metric._defaults}, odd

    def _feed(self, metric: Any, targets: torch.Tensor, outputs: torch.Tensor) -> None:
        named = {"preds", "target"} <= set(metric._update_signature.parameters)
        try:
            metric.update(preds=outputs, target=targets) if named else metric.update(outputs, targets)
        except Exception as error:
            raise DataError(
                f"{self.name}: {self._class()} does not accept targets of shape {tuple(targets.shape)} "
                f"({targets.dtype}) with outputs of shape {tuple(outputs.shape)} ({outputs.dtype}): "
                f"{_first_line(error)}."
            ) from error

    def _holding(self, metric: Any, states: Any) -> Any:
        for key, value in states.items():
            setattr(metric, key, value)
        metric._update_count = 1
        return metric

    def _joined(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        total: dict[str, Any] = {}
        for key, default in self._blank._defaults.items():
            values = [part[key] for part in parts]
            name = _reduction(self._blank._reductions[key])
            if isinstance(default, list):
                total[key] = [item for value in values for item in value]
            elif name == "dim_zero_sum":
                # Each part starts at the default (nearly always zero), which must count only once.
                total[key] = functools.reduce(torch.add, [value - default for value in values[1:]], values[0].clone())
            elif name == "dim_zero_mean":
                total[key] = default.clone()  # `update` ensures that it never changes
            else:
                total[key] = functools.reduce(_PAIRWISE[name], values[1:], values[0].clone())
        return total

    def _number(self, value: Any) -> float:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return float(value)
        if isinstance(value, int | float | np.number):
            return float(value)
        received = f"{value.numel()} numbers" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise DataError(
            f"{self.name}: {self._class()} returned {received}; a metric must be one number. Choose an average, such "
            "as average='macro', or write a function of (target, output)."
        )

    def _class(self) -> str:
        return type(self._blank).__name__


def _is(kind: type, name: str) -> bool:
    """Whether a class is torchmetrics' `name` or a subclass of it, without importing torchmetrics."""
    return any(base.__name__ == name and base.__module__.split(".")[0] == "torchmetrics" for base in kind.__mro__)


def _from(kind: type, *folders: str) -> bool:
    return any(
        base.__module__.startswith(tuple(f"torchmetrics.{folder}" for folder in folders)) for base in kind.__mro__
    )


def _members(collection: Any) -> list[Metric]:
    members: list[Metric] = []
    for key, metric in collection.clone().items(keep_base=True):
        _check(metric)
        # A key equal to the class's name was not chosen by the user.
        name = _name(metric) if key == type(metric).__name__ else str(key)
        members.append(TorchMetric(metric, f"{collection.prefix or ''}{name}{collection.postfix or ''}"))
    return members


def _check(metric: Any) -> None:
    kind = type(metric)
    parameters = metric._update_signature.parameters.values()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = sum(
        one.default is one.empty for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    )
    variadic = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    if _is(kind, "BaseAggregator") or required > 2 or (len(positional) < 2 and not variadic):
        raise ArgumentError(
            f"metrics={kind.__name__}: its update takes ({', '.join(one.name for one in parameters)}); expected "
            "(preds, target). Write a function of (target, output) instead."
        )


def _name(metric: Any) -> str:
    """Return Orca's name for such a metric, or the class name in snake case."""
    word = type(metric).__name__
    word = re.sub("^(Binary|Multiclass|Multilabel)(?=.)", "", word)
    if word == "MeanSquaredError" and not getattr(metric, "squared", True):
        return "rmse"
    top = getattr(metric, "top_k", None) or 1
    flat = word.lower()
    for name, aliases in ALIASES.items():
        if flat == name.replace("_", "") or flat in aliases.split():
            return f"top{top}_{name}" if top > 1 else name
    return re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", word).lower()


def _scores(kind: type) -> str:
    """Return the function by which this class turns logits into probabilities; "" if it does not."""
    if not _from(kind, "classification"):
        return ""
    names = [base.__name__ for base in kind.__mro__ if base.__module__.startswith("torchmetrics.classification")]
    if any(name.startswith(("Binary", "Multilabel")) for name in names):
        return "sigmoid"
    # These use only the largest score, which softmax does not change.
    argmax = {"MulticlassStatScores", "MulticlassConfusionMatrix", "MulticlassExactMatch"}
    return "" if argmax & set(names) else "softmax"


def _mergeable(metric: Any) -> bool:
    """Whether the states of parts can be merged into the state of the whole."""
    nested = any(part is not metric and _is(type(part), "Metric") for part in metric.modules())
    if nested or not metric._defaults:
        return False
    for key, default in metric._defaults.items():
        name = _reduction(metric._reductions[key])
        joins = isinstance(default, list) and name in ("dim_zero_cat", "")
        # A state with "mean" may be a constant, such as a pixel range; `update` checks that.
        adds = isinstance(default, torch.Tensor) and (name in _PAIRWISE or name == "dim_zero_mean")
        if not joins and not adds:
            return False
    return True


def _reduction(fx: Any) -> str:
    """Return the name of a torchmetrics reduction, "" for None, and "?" for a user's function."""
    if fx is None:
        return ""
    own = str(getattr(fx, "__module__", "")).startswith("torchmetrics.")
    return str(fx.__name__) if own else "?"


def _fingerprints(metric: Any) -> dict[str, tuple[int, ...]]:
    """Return marks that show whether an attribute that is not a state was assigned or changed in place."""
    own = {key: value for key, value in vars(metric).items() if key not in _BOOKKEEPING and key not in metric._defaults}
    own |= metric._buffers
    return {
        key: (id(value), getattr(value, "_version", 0), len(value) if isinstance(value, list | dict | set) else 0)
        for key, value in own.items()
    }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
