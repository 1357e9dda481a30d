"""One run of fit on a gang: routes what ranks report and restarts after failures."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from orca.backends.base import State
from orca.backends.worker.events import EpochEnd, EpochProgress, MoreWorkers, Record, Scores, StepValues
from orca.backends.worker.job import Job
from orca.backends.worker.plan import FitPlan, FitResult
from orca.backends.worker.position import Position
from orca.backends.worker.training import fit_on_rank
from orca.callbacks import Callback, Logger
from orca.errors import OrcaError, ResourceError, WorkerError
from orca.history import History
from orca.launch.base import Needs, Source
from orca.runs.checkpoints import CheckpointWriter
from orca.runs.elastic import ElasticGang
from orca.runs.progress import ProgressBar
from orca.runs.ranks import job_of
from orca.runs.rows import reading_ranks
from orca.runs.values import Learned, Setup
from orca.shards.orders import ScoredRows, TrainingRows

_log = logging.getLogger("orca")
_REASON_LENGTH = 120
"""How much of an error the line about a change of size has."""

FIRST_WARNING_SECONDS = 30.0
"""An epoch that runs for that long, and may never end, is worth a message, and again after twice that time."""


class FitRun:
    """A run, restarted as often as failures are allowed."""

    def __init__(self, plan: FitPlan, bar: ProgressBar, writer: CheckpointWriter, loggers: Sequence[Logger]) -> None:
        self._plan, self._bar, self._writer, self._loggers = plan, bar, writer, loggers
        self._records: dict[int, Record] = {}
        self._changes: list[str] = []
        """The changes of the number of workers."""
        self._last_step = 0
        """The last step of this run that loggers have received."""
        self._watched = 0, 0.0, 0.0
        """The epoch that may never end, when it began, and after how many seconds the next message is due."""

    def train(
        self, learned: Learned, workers: ElasticGang, sources: Mapping[str, Source], max_failures: int
    ) -> FitResult:
        """Train; after a failure resume from the last checkpoint, or from the start if there was none."""
        failures, state = 0, learned.state
        if workers.reduced:
            self._note(f"fit starts with {workers.size} (there is no room for more)")
        job = job_of(workers.setup, learned, workers.gang)
        while True:
            try:
                result = self._call(job, workers, sources)
            except (WorkerError, ResourceError) as error:
                # Ranks that could not start are no failure if the run can do with fewer.
                counts = workers.gang.started or not workers.elastic
                failures += counts
                # Errors in the data or the arguments come back with every attempt.
                lasting = isinstance(error.__cause__, OrcaError) or (isinstance(error, ResourceError) and counts)
                if failures > max_failures or lasting:
                    raise
                state = self._return_to_checkpoint(state)
                before = workers.setup
                workers.after_failure(error)
                self._report(error, workers, workers.setup is not before, f"failure {failures} of {max_failures}")
            else:
                if not result.paused:
                    return result
                state, self._plan = result.state, _rest(self._plan, result.position, result.step)
                if workers.grow():
                    more = f"fit continues with {workers.size} from step {result.step}"
                    self._note(f"{more} (there is room for them again)")
            job = replace(job_of(workers.setup, learned, workers.gang), state=state)

    def _call(self, job: Job, workers: ElasticGang, sources: Mapping[str, Source]) -> FitResult:
        results: list[FitResult] = workers.gang.call(
            fit_on_rank,
            job,
            replace(self._plan, reduced=workers.reduced),
            sources=sources,
            needs=self._needs(workers.setup),
            on_event=self._receive,
            on_question=lambda question: isinstance(question, MoreWorkers) and workers.has_room(),
        )
        return results[0]

    def _return_to_checkpoint(self, state: State | None) -> State | None:
        """Return the state to restart from: the last checkpoint's, unless the run has paused after it."""
        last = self._writer.last
        if last is None or last.step < self._plan.first_step:
            return state
        self._plan = _rest(self._plan, last.position, last.step)
        return self._writer.last_state()

    def _report(self, error: OrcaError, workers: ElasticGang, is_change: bool, count: str) -> None:
        first_line, step = str(error).splitlines()[0], self._plan.first_step
        if is_change:
            _log.info("%s", error)
            reason = first_line.partition(" (")[0][:_REASON_LENGTH].rstrip(". ")
            self._note(f"fit continues with {workers.size} from step {step} ({reason})")
        else:
            _log.warning("%s", first_line)
            _log.warning("restarting after step %d (%s allowed)", step, count)

    def _note(self, line: str) -> None:
        _log.warning("%s", line)
        self._changes.append(line)

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
        rows = [records[epoch] for epoch in sorted(records)]
        return History(rows, stopped=result.reason, params=params, changes=self._changes)

    def _receive(self, event: object) -> None:
        self._bar(event)
        self._writer(event)
        if isinstance(event, EpochProgress):
            self._watch(event)
        elif isinstance(event, EpochEnd):
            epoch = event.record["epoch"]
            # After a failure epochs are trained again; a log has each of them once.
            retrained = epoch in self._records
            self._records[epoch] = event.record
            for logger in () if retrained else self._loggers:
                logger.epoch({**event.record, "step": event.step})
        elif isinstance(event, Scores):
            for logger in () if event.epoch in self._records else self._loggers:
                logger.scores(event.step, event.values)
        elif isinstance(event, StepValues):
            self._log_steps(event)

    def _watch(self, event: EpochProgress) -> None:
        """Say what is going on if an epoch over a stream takes long: nobody knows whether it ends."""
        plan, (epoch, began, wait) = self._plan, self._watched
        if event.total is not None or plan.steps_per_epoch is not None or plan.max_steps is not None:
            return
        now = time.monotonic()
        if epoch != event.epoch:
            self._watched = event.epoch, now, FIRST_WARNING_SECONDS
        elif now - began > wait:
            self._watched = epoch, began, 2 * wait
            _log.warning(
                "epoch %d: %d rows in %.0f s so far, of data without a length. Does it end? Otherwise pass "
                "steps_per_epoch= or max_steps= to fit.",
                epoch,
                event.rows,
                now - began,
            )

    def _log_steps(self, event: StepValues) -> None:
        last = event.first + len(event.values["loss"]) - 1
        logged = max(0, self._last_step + 1 - event.first)
        if last > self._last_step:
            self._last_step = last
            for logger in self._loggers:
                logger.steps(event.first + logged, {name: values[logged:] for name, values in event.values.items()})


def _rest(plan: FitPlan, position: Position, step: int) -> FitPlan:
    """Return what is left of a plan at a position."""
    return replace(
        plan,
        first_epoch=position.epoch,
        resume=position,
        first_step=step,
        max_steps=None if plan.max_steps is None else plan.max_steps - (step - plan.first_step),
        stopped=position.reason,
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
