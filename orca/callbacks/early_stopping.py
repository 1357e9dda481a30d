"""Early stopping: ends a run whose results no longer improve."""

from __future__ import annotations

from typing import Any

from orca.callbacks.base import Run, State
from orca.callbacks.monitor import Monitor
from orca.errors import ArgumentError


class EarlyStopping(Monitor):
    """Ends the run when a result has not improved for more than `patience` consecutive epochs.

    After `fit`, `best`, `best_epoch` and `stopped_epoch` describe the run.

    Args:
        monitor: Name of the result in the epoch record.
        patience: Epochs without improvement to tolerate.
        min_delta: Smallest change that counts as an improvement.
        mode: Which values are better: "min", "max", or "auto" to infer it from the name.
        baseline: Value to improve on from the start.
        restore_best: Whether to restore the model of the best epoch at the end.

    Raises:
        ArgumentError: If `patience` or `mode` is invalid.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 0,
        min_delta: float = 0.0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best: bool = False,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 0:
            raise ArgumentError(f"patience={patience!r}: expected an integer of at least 0.")
        self.patience = patience
        self.baseline = baseline
        self.best = baseline
        self.restore_best = restore_best
        self.best_epoch = 0
        self.waited = 0
        self.stopped_epoch = 0
        self._best_state: State | None = None

    def before_run(self, run: Run) -> None:
        if not run.resumed:
            self.best, self.best_epoch, self.waited, self._best_state = self.baseline, 0, 0, None

    def after_epoch(self, run: Run) -> None:
        value = self.value(run)
        if value is None:
            return
        if self.improves(value):
            self.best, self.best_epoch, self.waited = value, run.epoch, 0
            if self.restore_best:
                self._best_state = run.snapshot()
            return
        self.waited += 1
        if self.waited > self.patience:
            self.stopped_epoch = run.epoch
            best = f"{self.best:.6g}" if self.best is not None else "none"
            run.stop(f"{self.monitor} did not improve on {best} in {self.waited} epochs")

    def after_run(self, run: Run) -> None:
        if self._best_state is not None and self.best_epoch != run.epoch:
            run.restore(self._best_state)
        self._best_state = None

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited, "kept": self._best_state}

    def load_state(self, state: dict[str, Any]) -> None:
        self.best, self.best_epoch, self.waited = state["best"], state["best_epoch"], state["waited"]
        self._best_state = state["kept"]
