"""One cell of the fault matrix: a call that a fault strikes, and what has to hold after it."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import OrcaError
from orca.testing.cases import SEED, BackendCase, cut
from orca.testing.comparing import near, same_scores, same_weights
from orca.testing.failing import local_pids
from orca.testing.fault_injectors import INJECTORS, Undo, nothing
from orca.testing.fault_kinds import EITHER, ERROR, INTERRUPT, SUCCESS, FaultKind
from orca.testing.leftovers import Leftovers, look, settle, still_there
from orca.testing.moments import Ambush, lay, pass_shard
from orca.testing.report import FAILED, PASSED, SKIPPED, NotApplicable, Result
from orca.triggers import EveryEpoch, SeveralIteration

if TYPE_CHECKING:
    from orca.context import Context

ROWS, BATCH, WORKERS = 54, 9, 2
HANG_SECONDS = 100.0
"""A call that lasts longer than this after everything was warm hangs."""


@dataclass(frozen=True)
class FaultResult(Result):
    """The outcome of one cell: "passed" if everything held."""

    fault: str = ""
    phase: str = ""
    ended: str = ""
    """How the call ended: "success", "error" or "interrupt"."""
    to_end: float | None = None
    """Seconds from the fault to the error."""
    left: str = ""
    """What was left behind."""


class Hung(BaseException):
    """Raised in the main thread by the watchdog."""


@dataclass
class Scene:
    """The estimator that a fault strikes, and the call that it is in."""

    kind: FaultKind
    phase: str
    case: BackendCase
    context: Context
    folder: str
    left: str = ""
    ended: str = ""
    to_end: float | None = None
    moment: float = 0.0
    undo: Undo = nothing
    trouble: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x, self.y = self.case.data(ROWS)
        place = self.phase in ("start", "fit", "evaluate", "checkpoint")
        # The last worker, which others wait for; rank 0 is the one that writes checkpoints.
        rank = WORKERS - 1 if self.case.processes and self.phase != "checkpoint" else 0
        moment = "none" if self.phase == "idle" else self.phase
        self.ambush = Ambush(self.folder, self.kind.act, moment, rank if place else None, os.getpid())
        self.est = self.case.make(WORKERS, seed=SEED, model_dir=f"{self.folder}/model")
        lay(self.est, self.ambush)

    def call(self) -> Any:
        """Do what the phase consists of."""
        if self.phase == "data":
            return cut(self.x, self.y, (20, 0, 30, 4)).transform_shard(pass_shard, self.ambush).collect()
        if self.phase == "evaluate":
            return self.est.evaluate(self.x, self.y)
        if self.phase == "predict":
            return self.est.predict(self.x, batch_size=BATCH)
        return self.fit(self.phase == "checkpoint")

    def fit(self, checkpoints: bool = False) -> Any:
        """Train one more epoch."""
        trigger = (SeveralIteration(2) if self.case.lockstep else EveryEpoch()) if checkpoints else None
        return self.est.fit(self.x, self.y, batch_size=BATCH, checkpoint_trigger=trigger)

    def check(self, value: Any) -> None:
        """Require the exact result of the phase's call."""
        if self.phase == "data":
            rows = np.concatenate([shard["x"] for shard in value])
            np.testing.assert_array_equal(rows, self.x, "transformed rows")
        elif self.phase == "evaluate":
            if self.case.scores is not None:
                same_scores(value, self.case.scores(self.est, self.x, self.y), "evaluate")
        elif self.phase == "predict":
            near(value, self.case.compute(self.est, self.x), "predictions", rtol=1e-4, atol=1e-5)
        else:
            self.check_fit(value)

    def check_fit(self, history: Any) -> None:
        """Require that an epoch used each row once, and exact weights."""
        assert history["rows"] == [ROWS], f"trained on {history['rows']} rows of {ROWS}"
        if self.case.lockstep:
            expected = self.case.expected(ROWS, self.est.epoch, BATCH)
            same_weights(self.case.learned(self.est), expected, self.case, f"after {self.est.epoch} epochs")
        else:
            assert np.isfinite(history["loss"]).all(), f"losses {history['loss']}"

    def check_checkpoints(self) -> None:
        """Require that every checkpoint in the estimator's folder can be loaded."""
        from orca.runs import saved_states
        from orca.runs.checkpoints import checkpoints

        for path in checkpoints(f"{self.folder}/model"):
            saved_states.load(path)

    def strike_idle(self) -> None:
        """Cause the fault while no call runs."""
        pids = local_pids(self.est, self.context)
        self.moment = time.time()
        if self.kind.by_driver:
            self.undo = INJECTORS[self.kind.name](pids[-1] if pids else 0)
            return
        if not pids:
            raise NotApplicable("the runtime has no ranks between calls")
        os.kill(pids[-1], {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.kind.act])
        if self.kind.act == "kill":
            assert not still_there(pids[-1:], []), "a killed rank lives"
        time.sleep(0.3)  # the driver notices on a thread of its own

    def cause(self, over: threading.Event) -> None:
        """In a thread: cause the fault as soon as a process waits for it."""
        while (struck := self.ambush.struck) is None:
            if over.wait(0.01):
                return
        try:
            self.undo = INJECTORS[self.kind.name](struck["pid"])
        except BaseException:
            self.trouble.append(traceback.format_exc())
        self.ambush.release()


def perform_cell(kind: FaultKind, phase: str, case: BackendCase, context: Context) -> FaultResult:
    """Run one cell and return its result; only an interrupt from outside gets through."""
    began, outcome, detail = time.monotonic(), PASSED, ""
    scene: Scene | None = None
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        try:
            scene = Scene(kind, phase, case, context, folder)
            run(scene)
        except NotApplicable as reason:
            outcome, detail = SKIPPED, str(reason)
        except (Exception, Hung):
            outcome, detail = FAILED, traceback.format_exc()
            # The next cell must not suffer from this one.
            with suppress(Exception):
                context.stop_gangs()
    return FaultResult(
        f"{kind.name} in {phase}",
        time.monotonic() - began,
        outcome,
        detail,
        case.title,
        context.runtime,
        kind.name,
        phase,
        scene.ended if scene else "",
        scene.to_end if scene else None,
        scene.left if scene else "",
    )


def run(scene: Scene) -> None:
    """Let the fault strike, and require what has to hold after it."""
    kind, phase = scene.kind, scene.phase
    scene.check_fit(scene.fit())
    # Predictions may need processes of their own, which stay for the next call.
    scene.est.predict(scene.x, batch_size=BATCH)
    if phase in ("data", "evaluate", "predict"):
        scene.check(scene.call())
    before = look()
    if phase == "start" or (phase == "idle" and kind.name in ("ports taken", "zygote stopped")):
        scene.est.shutdown()
    if phase == "idle":
        scene.strike_idle()
    ended, value = _attempt(scene)
    now = time.time()
    scene.ended = ended
    if phase != "idle":
        struck = scene.ambush.struck
        assert struck is not None, "the fault did not strike: no process reached its moment"
        scene.moment = struck["time"]
    assert not scene.trouble, f"the fault could not be caused: {scene.trouble}"
    if ended != SUCCESS:
        scene.to_end = now - scene.moment
    _right_end(scene, ended, value)
    if ended == SUCCESS:
        scene.check(value)
    else:
        # An error and the frames of its traceback may refer to each other, and to what the call has stored.
        gc.collect()
        _left(scene, settle(before).minus(before), f"{kind.name} in {phase}")
    _goes_on(scene, before)


def _right_end(scene: Scene, ended: str, value: Any) -> None:
    expected = scene.kind.phases[scene.phase]
    right = (SUCCESS, ERROR) if expected == EITHER else (expected,)
    text = value if isinstance(value, str) else "the result"
    assert ended in right, f"the call ended with {ended}, expected {' or '.join(right)}: {text}"
    if scene.to_end is not None:
        assert scene.to_end < scene.kind.seconds, f"the call ended {scene.to_end:.1f} s after the fault"


def _goes_on(scene: Scene, before: Leftovers) -> None:
    """Require that further calls work and give exact results, and that nothing was lost or left behind."""
    if scene.phase == "data":
        scene.check(scene.call())
    scene.check_fit(scene.fit())
    predicted = scene.est.predict(scene.x, batch_size=BATCH)
    near(predicted, scene.case.compute(scene.est, scene.x), "the next predictions", rtol=1e-4, atol=1e-5)
    scene.check_checkpoints()
    if scene.kind.name.startswith("zygote"):
        # Ranks whose parent was killed are no longer below this process. Those of all gangs end here: the next cell
        # would use them, and take the process that forks new ones for something left behind.
        pids = local_pids(scene.est, scene.context)
        scene.context.stop_gangs()
        _left(scene, {"ranks": remaining} if (remaining := still_there(pids, [])) else {}, "after shutdown")
    end = time.monotonic() + 5
    while (grown := look().grown(before)) and time.monotonic() < end:
        time.sleep(0.1)
    _left(scene, grown, "after the next calls")


def _left(scene: Scene, extra: dict[str, list[Any]], what: str) -> None:
    if extra:
        scene.left = str(extra)
        raise AssertionError(f"{what}: left behind {extra}")


def _attempt(scene: Scene) -> tuple[str, Any]:
    """Run the call with the fault armed; return how it ended, with its result or its error."""
    over = threading.Event()
    thread = threading.Thread(target=scene.cause, args=(over,), daemon=True)
    waits = scene.kind.by_driver and scene.phase != "idle"
    result: tuple[str, Any] = INTERRUPT, None
    wrong: AssertionError | None = None
    with _signals():
        try:
            result = _call(scene, thread if waits else None)
        except KeyboardInterrupt:
            pass
        except AssertionError as error:
            wrong = error
        # The second interrupt may arrive anywhere between the first one and the end of the thread.
        with suppress(KeyboardInterrupt):
            over.set()
            if thread.is_alive():
                thread.join()
        with suppress(KeyboardInterrupt):
            scene.ambush.release()
        scene.undo()
    if wrong is not None:
        raise wrong
    return result


def _call(scene: Scene, thread: threading.Thread | None) -> tuple[str, Any]:
    try:
        with scene.ambush.armed():
            if thread is not None:
                thread.start()
            value = scene.call()
        return SUCCESS, value
    except OrcaError as error:
        # Only its text: the traceback would keep what the call has stored.
        return ERROR, f"{type(error).__name__}: {error}"
    except Hung:
        raise AssertionError(f"the call hung: it did not end within {HANG_SECONDS:.0f} s") from None
    except Exception as error:
        raise AssertionError(f"the call raised {type(error).__name__}, which is no OrcaError: {error}") from error


@contextmanager
def _signals() -> Iterator[None]:
    """Interrupts raise within this block, and so does a hang."""
    if threading.current_thread() is not threading.main_thread():
        raise NotApplicable("faults are injected from the main thread only")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def hang(*_: object) -> None:
        raise Hung

    old: list[tuple[signal.Signals, Any]] = []
    handlers: list[tuple[signal.Signals, Callable[..., None]]] = [(signal.SIGINT, interrupt), (signal.SIGALRM, hang)]
    for number, handler in handlers:
        old.append((number, signal.signal(number, handler)))
    delay, interval = signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, delay, interval)
        for number, handler in old:
            signal.signal(number, handler)


def fault_table(results: list[FaultResult]) -> str:
    """Return the results as a table with one row for each fault and runtime.

    >>> print(fault_table([FaultResult("kill in fit", 2.0, "passed", "", "torch.horovod", "local", "kill", "fit",
    ...                                "error", 0.7)]))
    fault  runtime  cells  held  not applicable  p50 to the end  max    left behind
    kill   local    1      1     0               0.7 s           0.7 s  0
    all             1      1     0               0.7 s           0.7 s  0
    """
    lines = [["fault", "runtime", "cells", "held", "not applicable", "p50 to the end", "max", "left behind"]]
    for fault, runtime in dict.fromkeys((result.fault, result.runtime) for result in results):
        mine = [result for result in results if (result.fault, result.runtime) == (fault, runtime)]
        lines.append([fault, runtime, *_numbers(mine)])
    lines.append(["all", "", *_numbers(results)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _numbers(results: list[FaultResult]) -> list[str]:
    run = [result for result in results if result.outcome != SKIPPED]
    times = [result.to_end for result in run if result.to_end is not None]
    median, longest = (f"{np.median(times):.1f} s", f"{max(times):.1f} s") if times else ("", "")
    held = sum(result.outcome == PASSED for result in run)
    left = sum(bool(result.left) for result in run)
    return [str(len(run)), str(held), str(len(results) - len(run)), median, longest, str(left)]


__all__ = ["FaultResult", "Scene", "fault_table", "perform_cell"]
