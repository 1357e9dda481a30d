"""Measures the memory of a process and its descendants, sampled on a thread, and limits it with a control group."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType

import psutil
import pytest


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


class Cage:
    """A memory control group (version 1 or 2) below our own; it includes the page cache, as a container does."""

    def __init__(self, limit: int) -> None:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        own = {names: path for _, names, path in lines}
        if "memory" in own:
            self.path = Path("/sys/fs/cgroup/memory" + own["memory"]) / f"orca-test-{os.getpid()}"
            setting = "memory.limit_in_bytes"
            self._peak = "memory.max_usage_in_bytes"
        else:
            self.path = Path("/sys/fs/cgroup" + own.get("", "/")) / f"orca-test-{os.getpid()}"
            setting = "memory.max"
            self._peak = "memory.peak"
        try:
            self.path.mkdir()
            (self.path / setting).write_text(str(limit))
        except OSError as error:
            if self.path.exists():
                self.path.rmdir()
            pytest.skip(f"no permission to create a memory control group here: {error}")

    @property
    def peak(self) -> int:
        return int((self.path / self._peak).read_text())

    def close(self) -> None:
        self.path.rmdir()
