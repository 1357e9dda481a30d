"""Checkpoints of the best or the latest epochs."""

from __future__ import annotations

import math
from typing import Any

from orca.callbacks.base import Run
from orca.callbacks.monitor import Monitor
from orca.errors import ArgumentError


class ModelCheckpoint(Monitor):
    """Saves the estimator after epochs, in folders ``epoch-0001`` and so on that `Estimator.load` reads.

    Args:
        path: Folder that holds the checkpoints, on any fsspec path.
        monitor: Result that decides which epochs are best; None to keep the latest.
        mode: Which values are better: "min", "max", or "auto" to infer it from the name.
        keep: Number of checkpoints to keep; None to keep all.

    Raises:
        ArgumentError: If `keep` or `mode` is invalid.
    """

    def __init__(self, path: str, *, monitor: str | None = None, mode: str = "auto", keep: int | None = 1) -> None:
        super().__init__(monitor or "", mode)
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise ArgumentError(f"keep={keep!r}: expected an integer of at least 1, or None for all.")
        self.path = str(path).rstrip("/")
        self.keep = keep
        self.saved: list[tuple[float, str]] = []
        """Value (or epoch) and folder of each checkpoint, the best or latest last."""

    def after_epoch(self, run: Run) -> None:
        value = self.value(run) if self.monitor else float(run.epoch)
        if value is None or math.isnan(value):
            return
        minimizes = bool(self.monitor) and self.minimizes
        folder = f"{self.path}/epoch-{run.epoch:04d}"
        # An epoch that is trained again replaces its earlier checkpoint.
        self.saved = [entry for entry in self.saved if entry[1] != folder]
        removed = None
        if self.keep is not None and len(self.saved) >= self.keep:
            worst = self.saved[0][0]
            if self.monitor and (value >= worst if minimizes else value <= worst):
                return
            removed = self.saved.pop(0)[1]
        run.save(folder, remove=removed)
        self.saved.append((value, folder))
        if self.monitor:
            self.saved.sort(key=lambda entry: -entry[0] if minimizes else entry[0])
        self.best = self.saved[-1][0]

    @property
    def best_path(self) -> str | None:
        """The folder of the best epoch, or of the latest without `monitor`."""
        return self.saved[-1][1] if self.saved else None

    def state(self) -> dict[str, Any]:
        return {"saved": [list(entry) for entry in self.saved]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.saved = [(float(value), str(folder)) for value, folder in state["saved"]]
