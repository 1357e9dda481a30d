"""Checks of runs that lose workers: they continue with fewer, grow again, and end like undisturbed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orca.callbacks import Logger
from orca.errors import ArgumentError
from orca.testing.cases import SEED, BackendCase
from orca.testing.comparing import near, refused, same_weights
from orca.testing.faults import Fault
from orca.testing.report import Check

if TYPE_CHECKING:
    from typing import Self

    from orca.context import Context
    from orca.estimator import Estimator
    from orca.launch.base import Launcher

ROWS, BATCH, EPOCHS = 5 * 12 - 5, 12, 3
"""5 steps an epoch, so that the checkpoint of step 6 is within the second epoch."""

_REGAIN_SECONDS = 1.0
"""How long a run waits for slots that will not come back."""


class Room(Logger):
    """Limits how many workers a context has room for, as lost hosts do; as a logger, by the epoch that has ended.

    Args:
        context: The context to limit, within a ``with`` block.
        est: The estimator that trains.
        after: The limit after each epoch; an epoch without entry has none.
    """

    def __init__(self, context: Context, est: Estimator, after: dict[int, int] | None = None) -> None:
        self._context, self._est, self._after = context, est, after or {}
        self.most: int | None = None
        self._limited: list[Launcher] = []

    def epoch(self, record: dict[str, Any]) -> None:
        self.most = self._after.get(record["epoch"])

    def __enter__(self) -> Self:
        est, context = self._est, self._context
        topology = est.backend.topology(est.spec, est.workers)
        servers = max(0, topology.ranks - est.workers)
        self._limit(context.gang(topology.ranks, est.backend.traits.preload, servers).launcher)
        create = context.launcher

        def launcher(preload: Sequence[str] = ()) -> Launcher:
            return self._limit(create(preload))

        context.launcher = launcher  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._context.launcher
        for launcher in self._limited:
            del launcher.room, launcher.regain_seconds

    def _limit(self, launcher: Launcher) -> Launcher:
        room = launcher.room
        launcher.room = lambda: room() if self.most is None else min(room(), self.most)  # type: ignore[method-assign]
        launcher.regain_seconds = min(launcher.regain_seconds, _REGAIN_SECONDS)
        self._limited.append(launcher)
        return launcher


def fewer_workers(case: BackendCase, context: Context) -> None:
    """A run that loses a worker within an epoch continues with one, grows again, and ends like an undisturbed one."""
    x, y = case.data(ROWS)
    whole, est = case.make(2, seed=SEED), case.make(2, seed=SEED)
    expected = whole.fit(x, y, batch_size=BATCH, epochs=EPOCHS)
    with Room(context, est, after={1: 1}) as room:
        options: dict[str, Any] = {"max_failures": 1, "min_workers": 1, "checkpoint_trigger": 6}
        history = est.fit(x, y, batch_size=BATCH, epochs=EPOCHS, callbacks=[room, Fault("kill", 1, 9)], **options)
    steps = ["1 of 2 workers from step 6", "2 of 2 workers from step 10"]
    assert len(history.changes) == 2, f"changes of size {history.changes}, expected {steps}"
    for line, words in zip(history.changes, steps, strict=True):
        assert words in line, f"changes of size {history.changes}, expected {steps}"
    same_weights(case.learned(est), case.learned(whole), case, "after a run with one worker for a while")
    near(history["loss"], expected["loss"], "losses of a run with one worker for a while")
    assert history["rows"] == [ROWS] * EPOCHS, f"trained on {history['rows']} rows"
    assert est.step == whole.step, f"{est.step} steps, expected {whole.step}"


def fixed_workers(case: BackendCase, context: Context) -> None:
    """A backend whose workers cannot change their number refuses min_workers before launch."""
    x, y = case.data(12)
    est = case.make(2, seed=SEED)
    refused(ArgumentError, lambda: est.fit(x, y, max_failures=1, min_workers=1), ["min_workers=1", est.backend.name])


CHECKS = [
    Check("fewer_workers", fewer_workers, ("trains", "lockstep", "processes")),
    Check("fixed_workers", fixed_workers, ("trains", "fixed_size")),
]
