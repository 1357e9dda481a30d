"""Measures the memory of a process and its descendants: proportional set size, sampled on a thread."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

import psutil


def family_pss() -> int:
    """Return the bytes that this process and its descendants occupy, with shared pages counted once.

    The descendants are suspended meanwhile: a page that becomes shared between the measurements of two processes
    would count one and a half times.
    """
    me = psutil.Process()
    family = me.children(recursive=True)
    suspended = []
    total = me.memory_full_info().pss
    try:
        for process in family:
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_STOPPED:
                    process.suspend()
                    suspended.append(process)
        for process in family:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    finally:
        for process in suspended:
            with contextlib.suppress(psutil.Error):
                process.resume()
    return total


class Peak:
    """Samples the memory on a thread; `peak` is the largest sample."""

    def __init__(self, every: float = 0.1) -> None:
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak = 0

    def _sample(self) -> None:
        while not self._stop.wait(self._every):
            self.peak = max(self.peak, family_pss())

    def __enter__(self) -> Peak:
        self.peak = family_pss()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
