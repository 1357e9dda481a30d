"""The losses and learning rates of an epoch's single steps, for loggers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.backends.replica import Outcome
from orca.backends.worker.events import StepValues

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


class StepLog:
    """This rank's part of every step: the summed loss, its divisor and the learning rate."""

    def __init__(self, entries: Iterable[Sequence[float]] = ()) -> None:
        self._entries = [(float(total), float(count), float(rate)) for total, count, rate in entries]

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, outcome: Outcome, rate: float | None) -> None:
        self._entries.append((outcome.loss_sum, outcome.loss_count, math.nan if rate is None else rate))

    def array(self) -> np.ndarray[Any, Any]:
        """Return the entries as a matrix, for checkpoints."""
        return np.array(self._entries, np.float64).reshape(-1, 3)

    @classmethod
    def summed(cls, parts: Sequence[Any], counts: bool) -> StepLog:
        """Return the steps of several ranks as those of one; zeros if they count on another."""
        if not parts:
            return cls()
        steps = np.array(parts[0], np.float64).reshape(-1, 3)
        steps[:, :2] = np.sum([np.asarray(part)[:, :2] for part in parts], axis=0) if counts else 0
        return cls(steps)

    def emit(self, context: RankContext, before: int) -> None:
        """Send the steps, over all ranks, to the driver; `before` is the number of steps before the first one."""
        parts = [part for part in context.allgather(self.array()) if len(part)]
        if context.place.rank == 0 and parts:
            # Workers that do not run in lockstep may have stopped at different steps.
            longest = max(parts, key=len)
            sums = np.zeros((len(longest), 2))
            for part in parts:
                sums[: len(part)] += part[:, :2]
            with np.errstate(invalid="ignore", divide="ignore"):
                values = {"loss": sums[:, 0] / sums[:, 1], "lr": longest[:, 2]}
            context.emit(StepValues(before + 1, values))
