"""The metrics of a compiled Keras model as sums that add up over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from orca.backends.base import OwnMetrics
from orca.backends.keras.engine import engine


class KerasMetrics(OwnMetrics):
    """The metrics a model was compiled with, its loss among them."""

    def __init__(self, model: Any, started: Callable[[], None]) -> None:
        self._model = model
        self._started = started
        self._names: set[str] | None = None
        self._earlier: list[Any] | None = None
        """Sums that were loaded before the metrics had variables, which they make with the first row."""

    @property
    def names(self) -> set[str]:
        """The names of all results."""
        if self._names is not None:
            return self._names
        found = {metric.name for metric in self._model.metrics}
        if self._built():
            found = self._names = found | set(self._model.get_metrics_result())
        return found

    @property
    def keeps_loss(self) -> bool:
        """Whether a metric of the user's own is called loss."""
        tracker = self._model._loss_tracker
        return any(metric.name == "loss" and metric is not tracker for metric in self._model.metrics)

    def _built(self) -> bool:
        compiled = getattr(self._model, "_compile_metrics", None)
        return compiled is None or compiled.built

    def _variables(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def reset(self) -> None:
        self._earlier = None
        self._model.reset_metrics()
        self._started()

    def sums(self) -> list[Any]:
        now, earlier = [engine.value_of(variable) for variable in self._variables()], self._earlier
        if earlier is None:
            return now
        # Without variables there was no row since.
        return earlier if len(now) < len(earlier) else [old + new for old, new in zip(earlier, now, strict=True)]

    def load(self, sums: list[Any]) -> None:
        variables = self._variables()
        self._earlier = sums if len(variables) < len(sums) else None
        if self._earlier is None:
            # Variables that are newer than the sums start from nothing.
            self._model.reset_metrics()
            for variable, value in zip(variables, sums, strict=False):
                variable.assign(value)
        self._started()

    def results(self, sums: list[Any]) -> dict[str, float]:
        self.load(sums)
        if not self._built():
            return {}
        found = {name: _number(value) for name, value in self._model.get_metrics_result().items()}
        if not self.keeps_loss and not engine.value_of(self._model._loss_tracker.count):
            # Nobody has told the model its loss.
            found.pop("loss", None)
        return found


def _number(value: Any) -> float:
    return float(np.mean(np.asarray(value)))
