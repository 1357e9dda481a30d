"""Which faults there are, in which phases and on which runtimes they can strike, and how a call may end then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orca.testing.cases import BackendCase

PHASES = ("start", "data", "fit", "evaluate", "predict", "checkpoint", "idle")
"""What is going on when a fault strikes: ranks start, shards are transformed, …, nothing."""
ERROR, SUCCESS, EITHER, INTERRUPT = "error", "success", "either", "interrupt"
"""How a call may end: an OrcaError; the exact result; one of both; KeyboardInterrupt."""
_CALLS = ("start", "data", "fit", "evaluate", "predict", "checkpoint")
_ON_RANKS = ("start", "fit", "evaluate", "checkpoint")
"""Phases that run on ranks on every runtime. Elsewhere Ray and Spark run tasks of their own for data and predict."""


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault.

    Args:
        name: The name in reports.
        what: What happens, in a few words.
        act: What the process that reaches the moment does, see `Ambush`.
        phases: When the fault can strike, with the ways in which a call may end then.
        runtimes: Where it can strike; empty for all.
        elsewhere: The reason for all other runtimes.
        by_driver: Whether the driver causes the fault, while a process waits at the moment.
        apart: Whether the cell needs a driver of its own, which may be changed or killed.
        seconds: How long a call may take to end after the fault.
        models: Whether the outcome may depend on the backend; otherwise one backend is enough.
    """

    name: str
    what: str
    act: str
    phases: dict[str, str]
    runtimes: tuple[str, ...] = ()
    elsewhere: str = ""
    by_driver: bool = False
    apart: bool = False
    seconds: float = 15.0
    models: bool = True


def _all(outcome: str, phases: tuple[str, ...] = _CALLS, **others: str) -> dict[str, str]:
    return {**dict.fromkeys(phases, outcome), **others}


FAULTS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("kill", "SIGKILL of a process", "kill", _all(ERROR, idle=SUCCESS, data=EITHER, predict=EITHER)),
        FaultKind(
            "stop",
            "SIGSTOP of a process",
            "stop",
            _all(ERROR, idle=EITHER),
            elsewhere="Ray and Spark run this as a task of their own and wait for a stopped process",
            seconds=25.0,
        ),
        FaultKind("raise", "an exception in user code", "raise", _all(ERROR)),
        FaultKind("slow", "one process is ten times slower", "slow", _all(SUCCESS), seconds=60.0),
        FaultKind("pause", "a process is stopped for 2 s", "pause", _all(SUCCESS), seconds=60.0, models=False),
        FaultKind("two interrupts", "two SIGINTs of the driver, 10 ms apart", "wait", _all(INTERRUPT), by_driver=True),
        FaultKind(
            "zygote killed",
            "SIGKILL of the process that forks local ranks",
            "wait",
            _all(EITHER, idle=SUCCESS),
            ("local",),
            "only the local runtime has a zygote",
            by_driver=True,
            seconds=30.0,
        ),
        FaultKind(
            "zygote stopped",
            "SIGSTOP of the process that forks local ranks",
            "wait",
            {"idle": EITHER, "start": EITHER},
            ("local",),
            "only the local runtime has a zygote",
            by_driver=True,
            seconds=60.0,
            models=False,
        ),
        FaultKind(
            "descriptors",
            "the driver may open no further file",
            "wait",
            {"start": EITHER, "data": EITHER, "fit": EITHER, "predict": EITHER, "checkpoint": EITHER},
            ("local",),
            "the limit would strike the runtime's own threads in the driver",
            by_driver=True,
            apart=True,
            models=False,
        ),
        FaultKind(
            "full disk",
            "no room in the temporary folder and in model_dir",
            "wait",
            {"data": EITHER, "fit": EITHER, "predict": EITHER, "checkpoint": ERROR},
            ("local",),
            "the runtime's own files would fill the small disk",
            by_driver=True,
            apart=True,
            models=False,
        ),
        FaultKind(
            "ports taken",
            "no free port on the host",
            "wait",
            {"start": EITHER, "idle": EITHER},
            ("local",),
            "the runtime itself needs ports",
            by_driver=True,
            apart=True,
            seconds=40.0,
        ),
        FaultKind(
            "raylet killed",
            "SIGKILL of the Ray node of a rank",
            "wait",
            _all(EITHER, ("data", "fit", "evaluate", "predict", "checkpoint"), idle=SUCCESS),
            ("ray",),
            "only Ray has raylets",
            by_driver=True,
            apart=True,
            seconds=60.0,
            models=False,
        ),
        FaultKind(
            "executor killed",
            "SIGKILL of the Spark executor of a rank",
            "wait",
            _all(EITHER, ("data", "fit", "evaluate", "predict", "checkpoint")),
            ("spark",),
            "only Spark has executors",
            by_driver=True,
            apart=True,
            seconds=60.0,
            models=False,
        ),
        FaultKind(
            "driver killed", "SIGKILL of the driver", "wait", _all(ERROR, idle=ERROR), by_driver=True, apart=True
        ),
        FaultKind(
            "network cut",
            "the link to the host of a rank goes down",
            "wait",
            _all(ERROR, ("fit", "evaluate")),
            ("ray",),
            "hosts of their own are set up for Ray only",
            by_driver=True,
            apart=True,
            seconds=60.0,
            models=False,
        ),
    )
}
"""All faults by name."""


def reason(kind: FaultKind, phase: str, case: BackendCase, runtime: str, first: bool = True) -> str:
    """Return why a fault does not apply to a phase of a backend on a runtime, or nothing.

    Args:
        kind: The fault.
        phase: One of `PHASES`.
        case: The backend's case.
        runtime: The name of the runtime.
        first: Whether this backend stands for all where the backend makes no difference.
    """
    if not case.trains:
        return "models of this backend are not trained"
    if phase not in kind.phases:
        return f"{kind.name} has no meaning in the phase {phase}"
    if kind.runtimes and runtime not in kind.runtimes:
        return kind.elsewhere
    if not first and (not kind.models or phase == "data"):
        return "does not depend on the backend; checked with another one"
    if phase == "idle" and runtime == "spark" and not kind.apart:
        return "Spark has no ranks between calls"
    if kind.name == "stop" and runtime in ("ray", "spark") and phase not in _ON_RANKS:
        return kind.elsewhere
    return ""


__all__ = ["EITHER", "ERROR", "FAULTS", "INTERRUPT", "PHASES", "SUCCESS", "FaultKind", "reason"]
