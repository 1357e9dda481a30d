"""Several server processes on one socket: the supervisor starts them, replaces those that die, and ends them together.

The supervisor imports everything once and never starts a thread or opens the store; processes are forked from it. So
a new one answers within a fraction of the time that an import of OpenVINO takes.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from orca.errors import OrcaError, ResourceError
from orca.serving.settings import Settings

log = logging.getLogger("orca.serving")
READY = b"ready"
_MOST_FAILURES = 5
"""Processes that may die one after the other before any of them answers."""
_TICK = 0.1
_GRACE_SECONDS = 5.0


@dataclass
class _Worker:
    """A running process and the pipe on which it reports."""

    number: int
    pid: int
    pipe: int
    message: bytes = b""

    @property
    def is_ready(self) -> bool:
        return self.message == READY


class Supervisor:
    """Keeps `settings.workers` processes running."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._folder = tempfile.mkdtemp(prefix="orca-serve-")
        tasks = settings.tasks or os.path.join(self._folder, "tasks")
        self._settings = replace(settings, tasks=tasks)
        self._listener = listener
        self._workers: dict[int, _Worker] = {}
        self._failures = 0
        self._ending = False
        # Held open by this process only: the others see its end, however it ends.
        self._alive, self._held = os.pipe()

    def run(self, started: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; running requests are finished."""
        _prepare(self._folder)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._end)
        try:
            # The first one alone: what is wrong with the store or a model is then reported once.
            self._start(0)
            self._wait_for_first()
            for number in range(1, self._settings.workers):
                self._start(number)
            announced = False
            while not self._ending:
                self._watch()
                if not announced and all(worker.is_ready for worker in self._workers.values()):
                    announced = True
                    started()
        finally:
            self._stop_all()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, signum: int, frame: FrameType | None) -> None:
        self._ending = True

    # Processes

    def _start(self, number: int) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reading)
                os.close(self._held)
                for worker in self._workers.values():
                    os.close(worker.pipe)
                code = _serve(self._settings, self._listener, writing, self._alive)
            finally:
                os._exit(code)  # nothing of the supervisor's own clean-up belongs to this process
        os.close(writing)
        self._workers[pid] = _Worker(number, pid, reading)

    def _wait_for_first(self) -> None:
        (worker,) = self._workers.values()
        while not worker.is_ready and not self._ending:
            ended = self._read(worker, _TICK)
            if ended:
                os.waitpid(worker.pid, 0)
                self._forget(worker)
                text = worker.message.decode(errors="replace")
                raise ResourceError(text or "The first server process ended before it answered; its output says why.")

    def _read(self, worker: _Worker, seconds: float) -> bool:
        """Read what a process reports; return whether it has ended its side without being ready."""
        readable, _, _ = select.select([worker.pipe], [], [], seconds)
        if not readable or worker.is_ready:
            return False
        data = os.read(worker.pipe, 65536)
        worker.message += data
        return not data

    def _watch(self) -> None:
        """Replace processes that died."""
        for worker in list(self._workers.values()):
            if not worker.is_ready:
                self._read(worker, 0)
                if worker.is_ready:
                    self._failures = 0
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in self._workers and not self._ending:
                self._replace(self._workers[pid], status)
                return
        time.sleep(_TICK)

    def _replace(self, worker: _Worker, status: int) -> None:
        self._forget(worker)
        code = os.waitstatus_to_exitcode(status)
        cause = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if not worker.is_ready:
            self._failures += 1
            cause += f": {worker.message.decode(errors='replace')}" if worker.message else ""
        log.warning("Server process %d (pid %d) ended, %s; a new one is started.", worker.number, worker.pid, cause)
        if self._failures >= _MOST_FAILURES:
            raise ResourceError(f"{self._failures} server processes ended before they answered; the last: {cause}.")
        _forget_counts(worker.pid)
        self._start(worker.number)

    def _forget(self, worker: _Worker) -> None:
        del self._workers[worker.pid]
        os.close(worker.pipe)

    def _stop_all(self) -> None:
        """End all processes: they finish their requests, within the time limit of a request."""
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + self._settings.timeout + _GRACE_SECONDS
        while self._workers:
            for pid in list(self._workers):
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0] == 0:
                        continue
                self._forget(self._workers[pid])
            if self._workers and time.monotonic() > deadline:
                for pid in self._workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        os.close(self._alive)
        os.close(self._held)


def _prepare(folder: str) -> None:
    """Import what all processes need, before they are forked."""
    counts = os.path.join(folder, "metrics")
    os.makedirs(counts, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # read by prometheus_client when it is imported
    import orca.serving.process  # noqa: F401

    gc.collect()
    gc.freeze()


def _forget_counts(pid: int) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _serve(settings: Settings, listener: socket.socket, report: int, alive: int) -> int:
    """Serve in a forked process; report readiness or the reason for its end."""
    from orca.serving.process import run

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        run(settings, listener, lambda: _report_ready(report), alive)
    except OrcaError as error:
        os.write(report, str(error).encode()[:60_000])
        return 1
    except BaseException as error:
        log.exception("The server process ended")
        os.write(report, f"{type(error).__name__}: {error}".encode()[:60_000])
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _report_ready(report: int) -> Any:
    os.write(report, READY)
