"""Measures memory of a whole family of processes: proportional set size, sampled while something runs."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil


def family_pss() -> int:
    """Bytes that this process and its descendants occupy, shared pages counted once."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


class Peak:
    """Samples the family's memory on a thread; `peak` is the largest sample."""

    def __init__(self, every: float = 0.05) -> None:
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
