"""The driver's side of one fit: what ranks tell goes to progress, checkpoints and loggers; failures start it again."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from orca.backends.base import State
from orca.backends.worker.job import Job
from orca.backends.worker.training import FitPlan, FitResult, fit_on_rank
from orca.callbacks import Callback, Logger
from orca.errors import OrcaError, WorkerError
from orca.history import History
from orca.keeper import Keeper
from orca.launch.base import Event
from orca.launch.gang import Gang
from orca.progress import Progress
from orca.shards.xshards import XShards

_log = logging.getLogger("orca")


class Fitting:
    """One run on a gang, as often started again as failures are allowed."""

    def __init__(self, plan: FitPlan, show: Progress, keeper: Keeper, loggers: Sequence[Logger]) -> None:
        self._plan, self._show, self._keeper, self._loggers = plan, show, keeper, loggers
        self._records: dict[int, dict[str, Any]] = {}
        self._last_step = 0
        """The last step that loggers have heard of in this run."""

    def run(
        self,
        gang: Gang,
        make_job: Callable[[], Job],
        state: State | None,
        sources: dict[str, XShards],
        max_failures: int,
    ) -> FitResult:
        """Train; after a failure go on from the last checkpoint, or from `state` if there was none."""
        failures = 0
        job = make_job()
        while True:
            try:
                plan = self._plan
                results: list[FitResult] = gang.call(fit_on_rank, job, plan, sources=sources, on_event=self._hear)
                return results[0]
            except WorkerError as error:
                failures += 1
                # What the data or the arguments cause comes back with every try.
                if failures > max_failures or isinstance(error.__cause__, OrcaError):
                    raise
                if self._keeper.last is not None:
                    state = self._keeper.last.data["state"]
                    self._plan = _rest(self._plan, self._keeper.last)
                _log.warning("%s", str(error).splitlines()[0])
                told = "starting again after step %d (failure %d of %d allowed)"
                _log.warning(told, self._plan.first_step, failures, max_failures)
                job = replace(make_job(), state=state)

    def history(self, result: FitResult) -> History:
        """The records of all epochs, those before a failure included."""
        records = self._records | {record["epoch"]: record for record in result.records}
        plan = self._plan
        params = {"epochs": plan.last_epoch, "steps": result.steps, "batch_size": plan.batch_size}
        return History([records[epoch] for epoch in sorted(records)], stopped=result.reason, params=params)

    def _hear(self, event: Event) -> None:
        self._show(event)
        self._keeper(event)
        if event.kind == "epoch":
            record = event.data["record"]
            # After a failure epochs are trained again; a log has each of them once.
            known = record["epoch"] in self._records
            self._records[record["epoch"]] = record
            for logger in () if known else self._loggers:
                logger.epoch({**record, "step": event.data["step"]})
        elif event.kind == "steps":
            self._log_steps(event.data["first"], event.data["values"])

    def _log_steps(self, first: int, values: dict[str, Any]) -> None:
        last = first + len(values["loss"]) - 1
        known = max(0, self._last_step + 1 - first)
        if last > self._last_step:
            self._last_step = last
            for logger in self._loggers:
                logger.steps(first + known, {name: told[known:] for name, told in values.items()})


def _rest(plan: FitPlan, last: Event) -> FitPlan:
    """What is left of a plan after its last checkpoint."""
    position, step = last.data["position"], last.data["step"]
    return replace(
        plan,
        first_epoch=position["epoch"],
        resume=position,
        first_step=step,
        max_steps=None if plan.max_steps is None else plan.max_steps - (step - plan.first_step),
        stopped=position["reason"],
    )


@contextmanager
def logged(loggers: Sequence[Logger], about: dict[str, Any]) -> Iterator[None]:
    """Tell loggers of a run's beginning and end, also if it or one of them fails."""
    with ExitStack() as stack:
        for logger in loggers:
            stack.push(lambda kind, error, trace, logger=logger: logger.end(error))
            logger.start(about)
        yield


def bring_back(callbacks: Sequence[Callback], blobs: Sequence[bytes | None]) -> None:
    """Put what rank 0's copies of the callbacks have become into the user's objects."""
    for callback, blob in zip(callbacks, blobs, strict=False):
        told = pickle.loads(blob) if blob is not None else None
        if isinstance(told, dict):
            callback.bring_back(told)
