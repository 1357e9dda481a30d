"""The base of callbacks that compare one value of the epoch records with the best one so far."""

from __future__ import annotations

import math

from orca.callbacks.base import Callback, Run
from orca.errors import ArgumentError, suggest


class Monitor(Callback):
    """Reads one value of each epoch record and decides whether it improves on the best."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise ArgumentError(f'mode={mode!r}: expected "auto", "min" or "max".')
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(min_delta)
        self.best: float | None = None

    def value(self, run: Run) -> float | None:
        """Return this epoch's value; None for a validation result in an epoch without validation."""
        value = run.record.get(self.monitor)
        if value is not None:
            return float(value)
        if self.monitor.startswith("val_") and run.validates:
            if not any(name.startswith("val_") for name in run.record):
                return None
        names = [name for name, value in run.record.items() if isinstance(value, float | int)]
        hint = " Give validation_data= to fit." if self.monitor.startswith("val_") and not run.validates else ""
        raise ArgumentError(
            f"monitor={self.monitor!r} is not among the results: {', '.join(names)}.{hint}"
            + suggest(self.monitor, names)
        )

    @property
    def minimizes(self) -> bool:
        """Whether smaller values are better."""
        return self.mode == "min" or (self.mode == "auto" and less_is_better(self.monitor))

    def improves(self, value: float) -> bool:
        """Return whether a value is better than the best one by more than `min_delta`."""
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        return value < self.best - self.min_delta if self.minimizes else value > self.best + self.min_delta


def less_is_better(name: str) -> bool:
    """Return whether smaller values of a result are better, judging by its name.

    >>> less_is_better("val_loss"), less_is_better("val_accuracy")
    (True, False)
    """
    words = name.removeprefix("val_").lower()
    parts = ("loss", "error", "mae", "mse", "mape", "nll", "entropy", "perplexity", "deviance", "distance")
    return any(part in words for part in parts)
