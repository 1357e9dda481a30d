"""Checks of resume: an interrupted run ends like one that was not."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from orca.testing.cases import SEED, BackendCase
from orca.testing.comparing import same_history, same_state
from orca.testing.failing import local_pids, topology
from orca.testing.faults import Fault, KillRank
from orca.testing.report import Check
from orca.triggers import SeveralIteration

if TYPE_CHECKING:
    from orca.context import Context
    from orca.estimator import Estimator
    from orca.history import History

ROWS, BATCH, STEPS = 13 * 12 - 5, 12, 30
"""13 steps an epoch, so that the checkpoint of step 16 is in the middle of the second epoch."""


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what Orca warns of."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("orca")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _fit(case: BackendCase, workers: int, **more: Any) -> tuple[Estimator, History]:
    est = (case.noisy or case.make)(workers, seed=SEED)
    return est, est.fit(*case.data(ROWS), batch_size=BATCH, max_steps=STEPS, **more)


def resume_after_a_killed_rank(case: BackendCase, context: Context) -> None:
    """With max_failures a killed rank leaves no trace in weights, optimizer and history."""
    victim = 1 if case.processes else 0
    whole, expected = _fit(case, case.most)
    with _warnings() as lines:
        options = {"checkpoint_trigger": SeveralIteration(8), "max_failures": 1}
        broken, history = _fit(case, case.most, callbacks=[Fault("kill", victim, 20)], **options)
    assert lines, "no rank was killed, or the restart was not reported as a warning"
    assert broken.step == whole.step == STEPS, f"{broken.step} and {whole.step} steps, expected {STEPS}"
    assert history["epoch"] == [1, 2, 3], f"epochs {history['epoch']}"
    same_state(broken, whole, case.exact_resume, "after a killed rank")
    same_history(history, expected, case.exact_resume, "after a killed rank")


def resume_from_a_checkpoint(case: BackendCase, context: Context) -> None:
    """A new estimator, or the same, continues a run in the middle of an epoch, validation included."""
    x, y = case.data(40)
    make = case.noisy or case.make
    options: dict[str, Any] = {"batch_size": 8, "epochs": 2, "validation_data": (x, y)}
    whole = make(2, seed=SEED)
    expected = whole.fit(x, y, **options)
    with tempfile.TemporaryDirectory() as folder:
        first = make(2, seed=SEED, model_dir=folder)
        first.fit(x, y, max_steps=8, checkpoint_trigger=SeveralIteration(8), **options)
        second = make(2, seed=SEED, model_dir=folder)
        for est in (second, first):
            history = est.fit(x, y, resume=True, **options)
            assert history["epoch"] == [2], f"epochs {history['epoch']}, expected the rest of epoch 2"
            assert est.step == whole.step, f"{est.step} steps, expected {whole.step}"
            same_state(est, whole, case.exact_resume, "after resume=True")
            same_history(history, expected, case.exact_resume, "after resume=True")


def resume_after_a_killed_server(case: BackendCase, context: Context) -> None:
    """With max_failures a killed rank that serves the workers leaves no trace either."""
    x, y = case.data(54)
    whole = case.make(2, seed=SEED)
    expected = whole.fit(x, y, epochs=3, batch_size=9)
    for victim in sorted({2, topology(whole).ranks - 1}):
        broken = case.make(2, seed=SEED)
        kill = KillRank(victim, partial(local_pids, broken, context))
        history = broken.fit(x, y, epochs=3, batch_size=9, max_failures=1, callbacks=[kill])
        assert kill.pids, "no rank was killed"
        same_state(broken, whole, case.exact_resume, f"after killed rank {victim}")
        same_history(history, expected, case.exact_resume, f"after killed rank {victim}")


CHECKS = [
    Check("resume_after_a_killed_rank", resume_after_a_killed_rank, ("trains", "lockstep"), remote=True),
    Check("resume_from_a_checkpoint", resume_from_a_checkpoint, ("trains", "lockstep")),
    Check("resume_after_a_killed_server", resume_after_a_killed_server, ("trains", "lockstep", "servers"), remote=True),
]
