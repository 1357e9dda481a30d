"""Moments of a call at which a fault strikes: processes reach them, and the driver arms one of them."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orca.testing.faults import fail

if TYPE_CHECKING:
    from orca.backends.base import Backend, Replica
    from orca.estimator import Estimator
    from orca.launch.rank import RankContext

STEPS = {"train_step": "fit", "evaluate_step": "evaluate", "predict_step": "predict", "state": "checkpoint"}
"""The methods of a replica that are moments, and their names."""
SLOW_SECONDS = 0.3
"""How long a slow process takes for a step; the steps of the checks' models take at most a tenth."""
PAUSE_SECONDS = 2.0
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Ambush:
    """A fault that waits at one moment for the first process that reaches it.

    Files in a folder connect the processes: "armed" is the driver's permission, and "struck" tells it when and where.

    Args:
        folder: A folder that all processes of the host can write to.
        act: What the process does: "kill", "stop" or "pause" itself, "raise", be "slow" from now on, or "wait" until
            the driver has caused the fault.
        moment: "start", "data", "fit", "evaluate", "predict" or "checkpoint".
        rank: The only rank that may be struck; None for any process.
        driver: The process that is never struck.
    """

    folder: str
    act: str
    moment: str
    rank: int | None = None
    driver: int = 0

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Let the fault strike within this block, at most once."""
        os.mkdir(self._file("armed"))
        try:
            yield
        finally:
            os.rmdir(self._file("armed"))
            self.release()

    def release(self) -> None:
        """Let a process that waits at the moment continue."""
        # A folder: creating it needs no descriptor, which the driver may have run out of.
        with suppress(FileExistsError):
            os.mkdir(self._file("done"))

    @property
    def struck(self) -> dict[str, Any] | None:
        """Process, host and time of the fault; None before it struck."""
        try:
            content = self._file("struck").read_text()
        except FileNotFoundError:
            return None
        return dict(json.loads(content)) if content.endswith("}") else None

    def reach(self, moment: str, rank: int | None = None) -> None:
        """Commit the fault if it waits here for this process."""
        here = moment == self.moment and (self.rank is None or rank == self.rank)
        if not here or os.getpid() == self.driver or not self._file("armed").exists():
            return
        first = self._strike()
        if self.act == "slow":
            time.sleep(SLOW_SECONDS if moment != "start" else PAUSE_SECONDS)
        elif first and self.act == "wait":
            self._wait()
        elif first and self.act == "pause":
            self._pause()
        elif first:
            fail(self.act)

    def _strike(self) -> bool:
        """Note that the fault strikes now; return whether this process is the first."""
        note = {"pid": os.getpid(), "host": os.uname().nodename, "time": time.time()}
        draft = self._file(f"draft-{os.getpid()}")
        draft.write_text(json.dumps(note))
        try:
            os.link(draft, self._file("struck"))
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def _wait(self) -> None:
        end = time.monotonic() + _WAIT_SECONDS
        while not self._file("done").exists() and time.monotonic() < end:
            time.sleep(0.01)

    def _pause(self) -> None:
        # A process that is stopped cannot wake itself.
        waking = f"sleep {PAUSE_SECONDS}; kill -CONT {os.getpid()}"
        with subprocess.Popen(["sh", "-c", waking]):
            os.kill(os.getpid(), signal.SIGSTOP)

    def _file(self, name: str) -> Path:
        return Path(self.folder) / name


def lay(est: Estimator, ambush: Ambush) -> None:
    """Make the processes of an estimator pass the moments of an ambush."""
    backend = copy.copy(est.backend)
    vars(backend)["build"] = partial(_build, ambush, est.backend)
    vars(backend)["build_alone"] = partial(_build_alone, ambush, est.backend)
    est._setup = replace(est._setup, backend=backend)


def pass_shard(shard: Any, ambush: Ambush) -> Any:
    """A function for shards that does nothing but pass the moment "data"."""
    ambush.reach("data")
    return shard


def _build(ambush: Ambush, backend: Backend[Any], spec: Any, context: RankContext, seed: int, workers: int) -> Replica:
    ambush.reach("start", context.place.rank)
    return _watched(backend.build(spec, context, seed, workers), ambush, context.place.rank)


def _build_alone(ambush: Ambush, backend: Backend[Any], spec: Any, seed: int, threads: int | None) -> Replica:
    return _watched(backend.build_alone(spec, seed, threads), ambush, None)


def _watched(replica: Replica, ambush: Ambush, rank: int | None) -> Replica:
    for method, moment in STEPS.items():
        vars(replica)[method] = partial(_step, ambush, moment, rank, getattr(replica, method))
    return replica


def _step(ambush: Ambush, moment: str, rank: int | None, step: Callable[..., Any], *args: Any, **more: Any) -> Any:
    ambush.reach(moment, rank)
    return step(*args, **more)
