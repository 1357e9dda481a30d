"""Faults for checks: a rank that raises, is killed or is stopped in some step, and ranks killed from the driver."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from orca.callbacks import Callback, Logger, Run
from orca.testing.leftovers import listening

MARK = "orca.testing fault"
MESSAGE = "this batch is cursed"


def fail(how: str) -> None:
    """Print when and where, then raise, or kill or stop this process."""
    print(MARK, how, os.uname().nodename, time.time())
    time.sleep(0.5)  # printed lines travel on a thread of their own
    if how == "raise":
        raise ZeroDivisionError(MESSAGE)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


def traced(lines: Iterable[str]) -> tuple[str, float]:
    """Find host and time of the fault in what a rank printed."""
    for line in lines:
        if MARK in line:
            host, moment = line.split()[-2:]
            return host, float(moment)
    raise AssertionError("the last output of the failed rank is not part of the error: no printed line arrived")


class Fault(Callback):
    """Fails on one rank before a step; not in a run that was resumed after the fault."""

    acts_on_batches = False

    def __init__(self, how: str, rank: int, step: int) -> None:
        self.how, self.rank, self.step = how, rank, step

    def before_batch(self, run: Run) -> None:
        if run.rank == self.rank and run.step == self.step - 1 and not run.resumed:
            fail(self.how)


class KillRank(Logger):
    """Kills the process of a rank from the driver, once, after the first epoch of a run."""

    def __init__(self, rank: int, pids: Callable[[], list[int]]) -> None:
        self._rank, self._pids = rank, pids
        self.moment = 0.0
        """When the process was killed."""
        self.pids: list[int] = []
        """The processes of all ranks at that moment."""
        self.ports: set[tuple[str, int]] = set()
        """Where they listened."""

    def epoch(self, record: dict[str, Any]) -> None:
        if not self.pids:
            self.pids = self._pids()
            self.ports = listening(self.pids)
            self.moment = time.time()
            os.kill(self.pids[self._rank], signal.SIGKILL)
