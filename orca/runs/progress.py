"""Progress bars and rank output on the driver, from the event stream of the ranks."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from orca.backends.worker.events import EpochEnd, EpochProgress, Record
from orca.core.machine import on_terminal
from orca.core.settings import settings
from orca.launch.base import LogLine

_NOT_SHOWN = ("epoch", "rows", "seconds", "rows_per_s", "lr")


class ProgressBar:
    """Shows one bar per epoch; used as the event callback of a gang's call.

    ``show=None`` shows bars where they are visible: on a terminal or in a notebook.
    """

    def __init__(self, last_epoch: int | None, show: bool | None) -> None:
        if show is None:
            show = on_terminal() or "ipykernel" in sys.modules
        self._show = show and sys.stderr is not None
        self._last_epoch = last_epoch
        self._bar: Any = None

    def __call__(self, event: object) -> None:
        if isinstance(event, LogLine):
            if settings.log_output and sys.stdout is not None:
                tqdm.write(f"[rank {event.rank}] {event.line}", file=sys.stdout)
        elif self._show and isinstance(event, EpochProgress):
            bar = self._open(event.epoch, event.total)
            if event.loss is not None:
                bar.set_postfix(loss=f"{event.loss:.4g}", refresh=False)
            bar.update(event.rows - bar.n)
        elif self._show and isinstance(event, EpochEnd):
            self._close_epoch(event.record)

    def _close_epoch(self, record: Record) -> None:
        bar = self._open(record["epoch"], record["rows"])
        shown = {name: value for name, value in record.items() if name not in _NOT_SHOWN}
        numbers = {name: f"{value:.4g}" for name, value in shown.items() if isinstance(value, float | int)}
        bar.set_postfix(numbers, refresh=False)
        bar.update(record["rows"] - bar.n)
        bar.close()
        self._bar = None

    def _open(self, epoch: int, total: int | None) -> Any:
        if self._bar is None:
            self._bar = tqdm(
                total=total,
                desc=f"epoch {epoch}" + (f"/{self._last_epoch}" if self._last_epoch is not None else ""),
                unit="row",
                unit_scale=True,
                mininterval=0.1,
            )
        return self._bar

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
