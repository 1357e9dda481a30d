"""Progress bars and rank output on the driver, from the event stream of the ranks."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from orca.core.settings import settings
from orca.launch.base import Event


class Progress:
    """Shows one bar per epoch; used as the event callback of a gang's call.

    ``show=None`` shows bars where somebody can see them: on a terminal or in a notebook.
    """

    def __init__(self, last_epoch: int | None, show: bool | None) -> None:
        if show is None:
            show = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._show = show
        self._last_epoch = last_epoch
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        if event.kind == "log":
            if settings.log_output:
                tqdm.write(f"[rank {event.rank}] {event.data['line']}", file=sys.stdout)
        elif self._show and event.kind == "progress":
            bar = self._open(event.data["epoch"], event.data["total"])
            if event.data["loss"] is not None:
                bar.set_postfix(loss=f"{event.data['loss']:.4g}", refresh=False)
            bar.update(event.data["rows"] - bar.n)
        elif self._show and event.kind == "epoch":
            record = event.data["record"]
            bar = self._open(record["epoch"], record["rows"])
            quiet = ("epoch", "rows", "seconds", "rows_per_s", "lr")
            bar.set_postfix(
                {n: f"{v:.4g}" for n, v in record.items() if n not in quiet and isinstance(v, float | int)},
                refresh=False,
            )
            bar.update(bar.total - bar.n)
            bar.close()
            self._bar = None

    def _open(self, epoch: int, total: int) -> Any:
        if self._bar is None:
            self._bar = tqdm(
                total=total,
                desc=f"epoch {epoch}" + (f"/{self._last_epoch}" if self._last_epoch is not None else ""),
                unit="row",
                unit_scale=True,
                mininterval=0.1,
            )
        return self._bar

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
