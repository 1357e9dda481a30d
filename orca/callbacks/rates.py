"""The callback that sets scheduled learning rates, whatever the framework's optimizers are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from orca.callbacks.base import Callback, Run
from orca.errors import ArgumentError
from orca.schedules import LearningRate


class RateSchedule(Callback):
    """Sets learning rates before each step, and lets them observe results after each epoch.

    Args:
        rates: The learning rates by the names of what they are for.
        score: The name of the first metric, which a `Plateau` may monitor as "score".
    """

    acts_on_batches = False

    def __init__(self, rates: Mapping[str, LearningRate], score: str | None) -> None:
        self.rates = dict(rates)
        self._monitors = {name: _result(rate.monitor, score) for name, rate in rates.items() if rate.monitor}

    @abstractmethod
    def apply(self, run: Run, rates: dict[str, float]) -> None:
        """Set the learning rates of the next step."""

    @property
    def monitor(self) -> str | None:
        """A result of validation that some rate depends on; `fit` needs validation data then."""
        return next((name for name in self._monitors.values() if name.startswith("val_")), None)

    def before_batch(self, run: Run) -> None:
        self.apply(run, {name: rate.at(run.step) for name, rate in self.rates.items()})

    def after_epoch(self, run: Run) -> None:
        results = run.scores | run.record
        for name, result in self._monitors.items():
            if result in results:
                self.rates[name].observe(run.step, float(results[result]))
            elif not (result.startswith("val_") and run.validates):
                raise ArgumentError(f"monitor={result!r} is not among the results: {', '.join(run.record)}.")

    def state(self) -> dict[str, Any]:
        return {name: rate.state() for name, rate in self.rates.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            if name in self.rates:
                self.rates[name].load_state(values)


def _result(monitor: str, score: str | None) -> str:
    """Return the name in the records of what BigDL calls "Loss" or "score"."""
    if monitor != "score":
        return "loss" if monitor == "Loss" else monitor
    if score is None:
        raise ArgumentError('Plateau("score") reduces the learning rate by the first metric: give metrics=.')
    return f"val_{score}"
