"""Learning rates of a graph's optimizers that change during a run, by a schedule or by the user's callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orca.backends.graph.optim_methods import created
from orca.backends.graph.program import Array
from orca.callbacks import Run
from orca.callbacks.rates import RateSchedule
from orca.optim_methods import OptimMethod
from orca.schedules import LearningRate

STATE = "orca_learning_rate/"
"""Begins the names of learning rates among the values of the optimizer's state."""


def split_optimizers(optimizer: Any) -> tuple[Any, dict[str, LearningRate]]:
    """Return the optimizers of ``tf.train``, and the rates that change, by prefix of variable names."""
    if isinstance(optimizer, Mapping):
        parts = {prefix: split_optimizers(part) for prefix, part in optimizer.items()}
        changing = {prefix: rates[""] for prefix, (_, rates) in parts.items() if "" in rates}
        return {prefix: created for prefix, (created, _) in parts.items()}, changing
    if isinstance(optimizer, OptimMethod):
        rate = optimizer.rate()
        return created(optimizer), {} if rate.constant else {"": rate}
    return optimizer, {}


class GraphOptimizer:
    """The optimizer of a graph as callbacks see it, ``run.optimizer``: its learning rates can be read and set."""

    def __init__(self, first: float | None, prefixes: tuple[str, ...]) -> None:
        self._first, self._prefixes = first, prefixes
        self.rates: dict[str, float] = {}
        """Rates that were set, by prefix of variable names; all others are those of the graph."""

    @property
    def learning_rate(self) -> float | None:
        """The learning rate, or that of the first of several optimizers; None if the graph computes it."""
        return self.rates.get(self._prefixes[0], self._first) if self._prefixes else self._first

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.rates = dict.fromkeys(self._prefixes, float(value))

    def state(self) -> dict[str, Array]:
        """Return the rates that were set, under names of their own among the values of variables."""
        return {f"{STATE}{prefix}": np.array(rate) for prefix, rate in self.rates.items()}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore the rates among the values of a state."""
        self.rates = {
            name.removeprefix(STATE): float(value) for name, value in values.items() if name.startswith(STATE)
        }


class GraphRates(RateSchedule):
    """Sets the learning rates of each step, by prefix of variable names."""

    def apply(self, run: Run, rates: dict[str, float]) -> None:
        run.optimizer.rates.update(rates)
