"""One run of fit on a gang: routes what ranks report and restarts after failures."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from orca.backends.worker.events import Checkpoint, EpochEnd, Record, StepValues
from orca.backends.worker.training import FitPlan, FitResult, fit_on_rank
from orca.callbacks import Callback, Logger
from orca.errors import OrcaError, WorkerError
from orca.history import History
from orca.launch.base import Needs, Source
from orca.launch.gang import Gang
from orca.runs.checkpoints import CheckpointWriter
from orca.runs.progress import ProgressBar
from orca.runs.ranks import job_of
from orca.runs.rows import reading_ranks
from orca.runs.values import Learned, Setup
from orca.shards.orders import ScoredRows, TrainingRows

_log = logging.getLogger("orca")


class FitRun:
    """A run, restarted as often as failures are allowed."""

    def __init__(self, plan: FitPlan, bar: ProgressBar, writer: CheckpointWriter, loggers: Sequence[Logger]) -> None:
        self._plan, self._bar, self._writer, self._loggers = plan, bar, writer, loggers
        self._records: dict[int, Record] = {}
        self._last_step = 0
        """The last step of this run that loggers have received."""

    def train(
        self, setup: Setup, learned: Learned, gang: Gang, sources: Mapping[str, Source], max_failures: int
    ) -> FitResult:
        """Train; after a failure resume from the last checkpoint, or from the start if there was none."""
        failures = 0
        state = learned.state
        job = job_of(setup, learned, gang)
        while True:
            try:
                results: list[FitResult] = gang.call(
                    fit_on_rank, job, self._plan, sources=sources, needs=self._needs(setup), on_event=self._receive
                )
                return results[0]
            except WorkerError as error:
                failures += 1
                # Errors in the data or the arguments come back with every attempt.
                if failures > max_failures or isinstance(error.__cause__, OrcaError):
                    raise
                if self._writer.last is not None:
                    state = self._writer.last.state
                    self._plan = _rest(self._plan, self._writer.last)
                _log.warning("%s", str(error).splitlines()[0])
                _log.warning(
                    "restarting after step %d (failure %d of %d allowed)",
                    self._plan.first_step,
                    failures,
                    max_failures,
                )
                job = replace(job_of(setup, learned, gang), state=state)

    def _needs(self, setup: Setup) -> dict[str, Needs]:
        """Return which rows each rank needs."""
        plan, workers = self._plan, reading_ranks(setup)
        limit = None if plan.validation_steps is None else plan.validation_steps * plan.batch_size
        needs: dict[str, Needs] = {
            "train": TrainingRows(workers, plan.batch_size, plan.shuffle),
            "validation": ScoredRows(workers, limit),
        }
        return {name: rows for name, rows in needs.items() if name not in plan.fetched}

    def history(self, result: FitResult) -> History:
        """Return the records of all epochs, those before a failure included."""
        records = self._records | {record["epoch"]: record for record in result.records}
        plan = self._plan
        params = {"epochs": plan.last_epoch, "steps": result.steps, "batch_size": plan.batch_size}
        return History([records[epoch] for epoch in sorted(records)], stopped=result.reason, params=params)

    def _receive(self, event: object) -> None:
        self._bar(event)
        self._writer(event)
        if isinstance(event, EpochEnd):
            epoch = event.record["epoch"]
            # After a failure epochs are trained again; a log has each of them once.
            retrained = epoch in self._records
            self._records[epoch] = event.record
            for logger in () if retrained else self._loggers:
                logger.epoch({**event.record, "step": event.step})
        elif isinstance(event, StepValues):
            self._log_steps(event)

    def _log_steps(self, event: StepValues) -> None:
        last = event.first + len(event.values["loss"]) - 1
        logged = max(0, self._last_step + 1 - event.first)
        if last > self._last_step:
            self._last_step = last
            for logger in self._loggers:
                logger.steps(event.first + logged, {name: values[logged:] for name, values in event.values.items()})


def _rest(plan: FitPlan, last: Checkpoint) -> FitPlan:
    """Return what is left of a plan after its last checkpoint."""
    return replace(
        plan,
        first_epoch=last.position.epoch,
        resume=last.position,
        first_step=last.step,
        max_steps=None if plan.max_steps is None else plan.max_steps - (last.step - plan.first_step),
        stopped=last.position.reason,
    )


@contextmanager
def logged(loggers: Sequence[Logger], about: dict[str, Any]) -> Iterator[None]:
    """Report a run's beginning and end to loggers, also if it or one of them fails."""
    with ExitStack() as stack:
        for logger in loggers:
            stack.push(lambda kind, error, trace, logger=logger: logger.end(error))
            logger.start(about)
        yield


def bring_back(callbacks: Sequence[Callback], blobs: Sequence[bytes | None]) -> None:
    """Copy the attributes of rank 0's callbacks into the user's objects."""
    for callback, blob in zip(callbacks, blobs, strict=False):
        attributes = pickle.loads(blob) if blob is not None else None
        if isinstance(attributes, dict):
            callback.bring_back(attributes)
