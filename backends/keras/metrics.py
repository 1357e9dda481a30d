"""The metrics of a compiled Keras model, as sums that can be reduced over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from orca.backends.base import OwnMetrics
from orca.backends.keras.engine import engine


class KerasMetrics(OwnMetrics):
    """The metrics that a model was compiled with, including its loss."""

    def __init__(self, model: Any, on_load: Callable[[], None]) -> None:
        self._model = model
        self._on_load = on_load
        self._names: set[str] | None = None
        self._earlier: list[Any] | None = None
        """Sums that were loaded before the metrics had variables, which are created with the first row."""

    @property
    def names(self) -> set[str]:
        """Names of all results."""
        if self._names is not None:
            return self._names
        names = {metric.name for metric in self._model.metrics}
        if self._built():
            names = self._names = names | set(self._model.get_metrics_result())
        return names

    @property
    def keeps_loss(self) -> bool:
        """Whether a user's metric is named "loss"."""
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
        self._on_load()

    def sums(self) -> list[Any]:
        current, earlier = [engine.value_of(variable) for variable in self._variables()], self._earlier
        if earlier is None:
            return current
        # Without variables there has been no row since.
        return earlier if len(current) < len(earlier) else [a + b for a, b in zip(earlier, current, strict=True)]

    def load(self, sums: list[Any]) -> None:
        variables = self._variables()
        self._earlier = sums if len(variables) < len(sums) else None
        if self._earlier is None:
            # Variables created after the sums were taken start from zero.
            self._model.reset_metrics()
            for variable, value in zip(variables, sums, strict=False):
                variable.assign(value)
        self._on_load()

    def results(self, sums: list[Any]) -> dict[str, float]:
        self.load(sums)
        if not self._built():
            return {}
        results = {name: _number(value) for name, value in self._model.get_metrics_result().items()}
        if not self.keeps_loss and not engine.value_of(self._model._loss_tracker.count):
            # The tracker has received no loss.
            results.pop("loss", None)
        return results


def _number(value: Any) -> float:
    return float(np.mean(np.asarray(value)))
