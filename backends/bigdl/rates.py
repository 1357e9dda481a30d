"""The learning rates of optim methods during a run."""

from __future__ import annotations

from orca.callbacks import Run
from orca.callbacks.rates import RateSchedule


class Rates(RateSchedule):
    """Sets the learning rate of every parameter group, by the number of its optim method."""

    def apply(self, run: Run, rates: dict[str, float]) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = rates[str(group["method"])]
