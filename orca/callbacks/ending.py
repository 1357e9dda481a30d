"""The callback that ends a run when a trigger says so."""

from __future__ import annotations

from typing import Any

from orca.callbacks.base import Callback, Run
from orca.triggers import EndTrigger, Progress


class EndCallback(Callback):
    """Stops a run when a trigger says so, on all ranks together.

    Args:
        trigger: The trigger.
        score: The name of the validation metric that is the score.
    """

    def __init__(self, trigger: EndTrigger, score: str | None = None) -> None:
        self._trigger, self._score = trigger, score
        self._last: float | None = None

    def after_batch(self, run: Run) -> None:
        # Ranks have different rows: only the loss over all of them ends a run in the step in which one process would.
        loss = run.step_loss() if self._trigger.uses_loss else None
        self._take(run.scores)
        if self._trigger.ends(Progress(run.epoch - 1, run.step, loss, self._last)):
            run.stop("the end trigger")

    def after_epoch(self, run: Run) -> None:
        self._take(run.record)
        loss = run.record.get("loss") if self._trigger.uses_loss else None
        if self._trigger.ends(Progress(run.epoch, run.step, loss, self._last)):
            run.stop("the end trigger")

    def _take(self, results: dict[str, Any]) -> None:
        if self._score is not None:
            self._last = results.get(f"val_{self._score}", self._last)

    def state(self) -> dict[str, Any]:
        return {"score": self._last}

    def load_state(self, state: dict[str, Any]) -> None:
        self._last = state["score"]
