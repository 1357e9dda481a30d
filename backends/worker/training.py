"""Training on a rank, for any framework: epochs, steps, callbacks, checkpoints, resuming."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
import psutil

from orca.backends.base import StepOptions
from orca.backends.worker.events import Checkpoint, EpochEnd, EpochProgress, StepValues
from orca.backends.worker.job import Job, keep_replica, replica_of
from orca.backends.worker.labels import Largest, check_labels, check_part, largest_of
from orca.backends.worker.not_finite import where_not_finite
from orca.backends.worker.position import Position
from orca.backends.worker.scoring import fetched_rows, open_rows, score
from orca.backends.worker.tally import Tally
from orca.callbacks import BATCH_HOOKS, Callback, Run, overrides
from orca.errors import DataError
from orca.shards.adapters.selection import features_of
from orca.shards.feed import Batch, Feed, Rows
from orca.shards.on_rank import FetchedRows
from orca.shards.orders import ScoredRows, TrainingRows, share
from orca.shards.prefetch import ahead
from orca.shards.tree import take_rows, tree_map
from orca.triggers import Trigger

if TYPE_CHECKING:
    from orca.backends.base import State
    from orca.launch.base import Needs
    from orca.launch.rank import RankContext

PROGRESS_SECONDS = 0.1


@dataclass(frozen=True)
class FitPlan:
    """Length, order and options of a run."""

    first_epoch: int
    last_epoch: int
    batch_size: int
    shuffle: bool | str = True
    first_step: int = 0
    """Steps of earlier fits."""
    max_steps: int | None = None
    validate: bool = False
    validation_freq: int = 1
    validation_steps: int | None = None
    steps_per_epoch: int | None = None
    callbacks: Sequence[Callback] = ()
    options: StepOptions = field(default_factory=StepOptions)
    trigger: Trigger | None = None
    terminate_on_nan: bool = True
    resume: Position | None = None
    """Where to resume."""
    stopped: str | None = None
    """Why the run had already ended when a failure occurred."""
    feature_names: Sequence[str] = ()
    """The names of the features' columns, for messages."""
    fetched: frozenset[str] = frozenset()
    """Sources whose rows are produced on the ranks."""
    steps_wanted: bool = False
    """Whether a logger uses the losses of single steps."""


@dataclass(frozen=True)
class FitResult:
    """Result of fit on a rank; everything but the records comes from rank 0 only."""

    records: list[dict[str, Any]]
    state: State | None
    position: Position
    epoch: int
    step: int
    callbacks: list[bytes | None]
    reason: str | None
    steps: int
    """Steps per epoch."""
    example: Any
    """The model's inputs without rows, for later uses of their form."""


class _Request(NamedTuple):
    """A method of the replica that all ranks must call."""

    method: str
    args: tuple[Any, ...]


def fit_on_rank(context: RankContext, job: Job, plan: FitPlan) -> FitResult:
    """Train as planned."""
    return Training(context, job, plan).run()


class Training:
    """One run of fit on one rank."""

    def __init__(self, context: RankContext, job: Job, plan: FitPlan) -> None:
        self._context, self._job, self._plan = context, job, plan
        self._replica = replica_of(context, job)
        self._place = context.place
        self._seat = self._replica.seat(context.place)
        self._needs = TrainingRows(self._seat.world, plan.batch_size, plan.shuffle)
        rows = self._open("train", self._needs)
        if not len(rows):
            raise DataError("There is no row to train on: all shards are empty.")
        self._feed = Feed(
            rows,
            rank=self._seat.rank or 0,
            world=self._seat.world,
            batch_size=plan.batch_size,
            seed=job.seed,
            shuffle=plan.shuffle,
        )
        limit = None if plan.validation_steps is None else plan.validation_steps * plan.batch_size
        scored = ScoredRows(self._seat.world, limit)
        self._validation = self._open("validation", scored) if plan.validate else None
        self._begun: tuple[int, int, Iterator[Batch]] | None = None
        """A stream of batches whose first one was needed before the training: its epoch, its first step, the stream."""
        self._form: Any = None
        """The features of some rows, without any row."""
        # A server without a model has nothing that a callback could read or change.
        serves = self._seat.rank is None and self._replica.inner_model is None
        self._callbacks = [] if serves else list(plan.callbacks)
        self._run = Run(self._replica, self._place.rank, self._seat.world, dict(job.spec.config))
        self._run.step = plan.first_step
        self._run.validates = plan.validate
        self._run.resumed = plan.resume is not None
        self._run.last_epoch = plan.last_epoch
        self._run.batches = min(self._feed.steps, plan.steps_per_epoch or self._feed.steps)
        self._run.own_epoch = plan.first_epoch
        self._hooked = {hook: [c for c in self._callbacks if overrides(c, hook)] for hook in BATCH_HOOKS}
        self._asks = any(c.acts_on_batches for hooked in self._hooked.values() for c in hooked)
        # A custom step does not return outputs: metrics are then for validation only.
        self._metrics = job.metrics if self._replica.gives_outputs else ()
        self._tally = Tally(self._metrics, self._replica.own_metrics)
        self._steps: list[tuple[float, float, float]] = []

    def _open(self, name: str, needs: Needs) -> Rows | FetchedRows:
        if name in self._plan.fetched:
            return fetched_rows(self._context, name, self._job.seed)
        return open_rows(self._context, name, needs, self._seat)

    def run(self) -> FitResult:
        """Train, and close what was opened for it."""
        with closing(self._feed.rows), closing(self._validation or self._feed.rows):
            return self._train_epochs()

    def _train_epochs(self) -> FitResult:
        run, plan, replica = self._run, self._plan, self._replica
        gradients = self._hooked["on_gradients"]
        hook = (lambda: self._call("on_gradients")) if gradients else None
        replica.configure(replace(plan.options, on_gradients=hook))
        parts, largest = self._look()
        surveys = self._context.allgather(([replica.survey(part) for part in parts], largest))
        replica.expect_classes(largest_of(found for _, found in surveys))
        replica.agree([survey for survey, _ in surveys])
        first_batch = self._restore() if plan.resume is not None else 0
        records: list[dict[str, Any]] = []
        run.epoch = plan.first_epoch
        run.reason = plan.stopped
        self._hook("before_run")
        for epoch in range(max(plan.first_epoch, run.own_epoch), plan.last_epoch):
            if run.reason is not None or self._is_over():
                break
            record = self._epoch(epoch, first_batch)
            if record is not None:
                records.append(record)
            first_batch = 0
        self._hook("after_run")
        self._save()
        # What a rank holds now is the next version of the model.
        keep_replica(self._context, self._job.owner, self._job.version + 1, replica)
        state = replica.state()
        main = self._place.rank == 0
        return FitResult(
            records,
            state if main else None,
            self._position(),
            run.epoch,
            run.step,
            [_packed(callback) for callback in self._callbacks] if main else [],
            run.reason,
            run.batches,
            self._example() if main else None,
        )

    def _example(self) -> Any:
        rows = self._feed.rows
        features = features_of(rows.slice(0, 1)) if isinstance(rows, Rows) else self._form
        return tree_map(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), features)

    def _epoch(self, epoch: int, first_batch: int) -> dict[str, Any] | None:
        """Run one epoch, or the rest of it; return None if a callback stopped the run before it began."""
        run, plan, replica, context = self._run, self._plan, self._replica, self._context
        run.epoch, run.batch, run.record, run.loss = epoch + 1, first_batch, {}, None
        if not first_batch:
            self._reseed(epoch)
            self._tally, self._steps = Tally(self._metrics, replica.own_metrics), []
            if replica.own_metrics is not None:
                replica.own_metrics.reset()
            self._hook("before_epoch")
            if run.reason is not None:
                run.epoch = epoch
                return None
        first_step = run.step - len(self._steps)
        began = time.monotonic()
        if self._place.rank == 0:
            self._emit_progress()
        if self._seat.rank is not None:
            self._train(epoch, first_batch)
        replica.settle()
        seconds = time.monotonic() - began
        self._meet()
        rows = min(run.batch * plan.batch_size, len(self._feed.rows))
        done = rows - min(first_batch * plan.batch_size, len(self._feed.rows))
        record: dict[str, Any] = {"epoch": epoch + 1, **self._tally.merged(context)}
        last = epoch + 1 == plan.last_epoch or run.reason is not None or self._is_over()
        if self._validation is not None and ((epoch + 1) % plan.validation_freq == 0 or last):
            limits = plan.batch_size, self._job.metrics, "val_", plan.validation_steps
            record |= score(context, replica, self._validation, *limits)
        rate = replica.learning_rate()
        if rate is not None:
            record["lr"] = rate
        record |= {"rows": rows, "seconds": seconds, "rows_per_s": done / max(seconds, 1e-9)}
        run.record = record
        self._hook("after_epoch")
        if plan.steps_wanted:
            self._emit_steps(first_step)
        if self._place.rank == 0:
            context.emit(EpochEnd(record, run.step))
        self._save()
        trigger = plan.trigger
        # A checkpoint due after the last step waits until here, so that it holds a whole epoch.
        if trigger is not None and (trigger.after_epoch(epoch + 1) or trigger.after_step(run.step)):
            self._checkpoint(None, None)
        return record

    def _train(self, epoch: int, first_batch: int) -> None:
        run, plan, replica = self._run, self._plan, self._replica
        want_output = bool(self._metrics)
        reported = time.monotonic()
        before, after = self._hooked["before_batch"], self._hooked["after_batch"]
        with closing(self._stream(epoch, first_batch)) as batches:  # type: ignore[type-var]
            for batch in batches:
                if before:
                    self._call("before_batch")
                outcome = replica.train_step(batch, want_output)
                if plan.terminate_on_nan and math.isnan(outcome.loss_sum):
                    raise self._nan_error()
                self._tally.add(outcome, batch.rows)
                run.batch += 1
                run.step += 1
                if plan.steps_wanted:
                    self._steps.append((outcome.loss_sum, outcome.loss_count, _number(replica.learning_rate())))
                if after:
                    run.loss = outcome.loss_sum / outcome.loss_count if outcome.loss_count else None
                    self._call("after_batch")
                now = time.monotonic()
                if self._place.rank == 0 and now - reported > PROGRESS_SECONDS:
                    reported = now
                    self._emit_progress()
                has_requests = self._asks and replica.any(run.reason is not None or bool(run.saves))
                if has_requests:
                    self._agree(self._seat.world)
                if run.reason is not None or self._is_over() or run.batch == run.batches:
                    break
                if has_requests:
                    self._save()
                if plan.trigger is not None and plan.trigger.after_step(run.step):
                    self._checkpoint(None, None)

    def _nan_error(self) -> DataError:
        rows = self._feed.rows
        found = where_not_finite(rows, self._plan.feature_names) if isinstance(rows, Rows) else ""
        advice = (
            f"The data has {found}. Fill these values or drop the rows"
            if found
            else "The data has no nan or inf. Lower the learning rate, or clip gradients with clip_norm="
        )
        return DataError(
            f"The loss became nan in step {self._run.batch + 1} of epoch {self._run.epoch}. {advice}; "
            "terminate_on_nan=False continues."
        )

    def _stream(self, epoch: int, first_batch: int) -> Iterator[Batch]:
        """Yield the epoch's batches, prefetched on a thread if a core is free for it or the disk must be read."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[:2] == (epoch, first_batch):
            return begun[2]
        batches = self._feed.epoch(epoch, first_batch)
        if not isinstance(self._feed.rows, Rows):
            return batches  # they read ahead by themselves
        waits = self._feed.rows.nbytes > psutil.virtual_memory().available
        return ahead(batches) if self._place.threads > 1 or waits else batches

    def _hook(self, name: str) -> None:
        """Call a hook of every callback where all ranks meet, then agree on their requests."""
        # Servers take part only here; within an epoch each worker has its own state.
        self._run.ask = self._ask if self._seat.world < self._place.world else None
        for callback in self._callbacks:
            getattr(callback, name)(self._run)
        self._run.ask = None
        self._agree()

    def _ask(self, method: str, *args: Any) -> None:
        """Let ranks without callbacks take part in what a callback does with all replicas."""
        self._context.allgather(_Request(method, args if self._place.rank == 0 else ()))

    def _call(self, hook: str) -> None:
        for callback in self._hooked[hook]:
            getattr(callback, hook)(self._run)

    def _is_over(self) -> bool:
        return self._plan.max_steps is not None and self._run.step - self._plan.first_step >= self._plan.max_steps

    def _meet(self) -> None:
        """Give ranks without data the progress of the others."""
        if self._seat.world < self._place.world:
            positions = self._context.allgather((self._run.batch, self._run.step, self._run.reason))
            self._run.batch, self._run.step = positions[0][:2]
            self._run.reason = next((reason for _, _, reason in positions if reason is not None), None)

    def _agree(self, members: int | None = None) -> None:
        """Combine the requests of all ranks' callbacks; within an epoch, of the ranks that train."""
        run = self._run
        if not self._plan.callbacks:
            return
        mine = (run.reason, run.saves, run.own_epoch)
        requests = self._context.allgather(mine, members)
        while isinstance(request := requests[0], _Request):
            getattr(self._replica, request.method)(*request.args)
            requests = self._context.allgather(mine, members)
        run.reason = next((reason for reason, _, _ in requests if reason is not None), None)
        run.saves = list(dict.fromkeys(save for _, saves, _ in requests for save in saves))
        run.own_epoch = max(epoch for _, _, epoch in requests)

    def _save(self) -> None:
        saves, self._run.saves = self._run.saves, []
        for path, remove in saves:
            self._checkpoint(path, remove)

    def _checkpoint(self, path: str | None, remove: str | None) -> None:
        """Send the whole state to the driver, which writes it while the ranks continue."""
        state = self._replica.state()
        position = self._position()
        if self._place.rank == 0:
            run = self._run
            self._context.emit(Checkpoint(state, position, run.epoch, run.step, self._example(), path, remove))

    def _position(self) -> Position:
        """Return where this run stands; the same on every rank."""
        run, plan = self._run, self._plan
        # An epoch that is complete needs nothing remembered of it.
        inside = 0 < run.batch < run.batches
        steps = np.array(self._steps, np.float64).reshape(-1, 3)
        own = {"tally": self._tally.sums(), "steps": steps, **self._randomness()} if inside else None
        return Position(
            epoch=run.epoch - 1 if inside else run.epoch,
            batch=run.batch if inside else 0,
            rows=len(self._feed.rows),
            batch_size=plan.batch_size,
            begun=plan.first_epoch if plan.resume is None else plan.resume.begun,
            ranks=self._context.allgather(own, self._seat.world) if inside and self._seat.rank is not None else [],
            metrics=[metric.name for metric in self._metrics],
            reason=run.reason,
            callbacks=[[_kind(callback), callback.state()] for callback in self._callbacks],
            shuffle=plan.shuffle,
        )

    def _look(self) -> tuple[list[Any], Largest]:
        """Check rows before the training, as far as they are here; return some of them and their largest classes."""
        rows = self._feed.rows
        if isinstance(rows, Rows):
            return rows.views(*self._part()), check_labels(self._replica, rows, *self._part())
        if self._seat.rank is None:
            return [], {}
        plan = self._plan
        epoch, first = plan.first_epoch, plan.resume.batch if plan.resume is not None else 0
        batches = self._feed.epoch(epoch, first)
        batch = next(batches, None)
        if batch is None:
            return [], {}
        # Each row is fetched once in an epoch, so the training continues with this stream.
        self._begun = epoch, first, _with_first(batch, batches)
        self._form = take_rows(features_of(batch.data), 0, 0)
        self._job.backend.framework.check_rows(self._job.spec, batch.data)
        return [batch.data], check_part(self._replica, batch.data)

    def _part(self) -> tuple[int, int]:
        """Return the rows (start, stop) that this rank checks before the training."""
        seat, count = self._seat, len(self._feed.rows)
        if seat.rank is None:
            return 0, 0
        # In some orders every rank has all rows.
        return share(count, seat.rank, seat.world) if self._needs.shuffle is not True else self._needs(count, seat.rank)

    def _restore(self) -> int:
        resume = self._plan.resume
        assert resume is not None
        # By kind and order: a callback that was not there before begins, one that is gone is not missed.
        left = list(resume.callbacks)
        for callback in self._callbacks:
            found = next((entry for entry in left if entry[0] == _kind(callback)), None)
            if found is not None:
                left = [entry for entry in left if entry is not found]
                callback.load_state(found[1])
        batch = resume.batch
        if not batch:
            return 0
        if (resume.rows, resume.batch_size) != (len(self._feed.rows), self._plan.batch_size):
            raise DataError(
                f"The checkpoint stands in step {batch} of an epoch over {resume.rows} rows with batch_size="
                f"{resume.batch_size}; now there are {len(self._feed.rows)} rows and batch_size="
                f"{self._plan.batch_size}. Resume with the same data and batch_size, or load it and start a new fit."
            )
        self._check_order(resume.shuffle)
        metrics = [metric.name for metric in self._metrics]
        if resume.metrics != metrics:
            raise DataError(
                f"The checkpoint stands within an epoch with the metrics {resume.metrics}; now they are {metrics}. "
                "Resume with the same metrics, or load it and start a new fit."
            )
        ranks = resume.ranks
        alike = self._seat.rank is not None and len(ranks) == self._seat.world
        mine = ranks[self._seat.rank or 0] if alike else None
        if mine is not None:
            self._resume_tally([mine["tally"]])
            self._steps = [(float(a), float(b), float(c)) for a, b, c in mine["steps"]]
            self._load_randomness(mine)
            return batch
        # Another number of ranks: the sums so far go on with one of them, random numbers start afresh.
        self._reseed(resume.epoch)
        self._resume_tally([part["tally"] for part in ranks if part is not None] if self._place.rank == 0 else [])
        return batch

    def _check_order(self, shuffle: bool | str | None) -> None:
        """Raise if the epoch to be resumed has another order of rows."""
        now = self._plan.shuffle
        # A checkpoint without the entry has a permutation of all rows, or the stored order.
        if shuffle == now or (shuffle is None and now is not True):
            return
        before = "global" if shuffle is None else shuffle
        raise DataError(
            f"The checkpoint stands within an epoch with shuffle={before!r}; now it is shuffle={now!r}, another order "
            f"of rows. Resume with shuffle={before!r}, or load it and start a new fit."
        )

    def _resume_tally(self, sums: list[dict[str, Any]]) -> None:
        """Continue with the sums of one or more ranks."""
        self._tally = Tally.joined(self._metrics, sums)
        own = self._tally.own = self._replica.own_metrics
        if own is not None:
            own.reset()
            if self._tally.own_sums is not None:
                own.load(self._tally.own_sums)

    def _reseed(self, epoch: int) -> None:
        number = np.random.SeedSequence([self._job.seed, epoch, self._place.rank, 1]).generate_state(1)[0]
        random.seed(int(number))
        np.random.seed(int(number))
        self._replica.reseed(self._job.seed, epoch, self._place.rank)

    def _randomness(self) -> dict[str, Any]:
        name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
        version, numbers, spare = random.getstate()
        return {
            "framework": self._replica.random_state(),
            "numpy": [str(name), np.array(keys), int(place), int(has_gauss), float(gauss)],
            "python": [version, np.array(numbers, np.int64), spare],
        }

    def _load_randomness(self, states: dict[str, Any]) -> None:
        self._replica.load_random_state(states["framework"])
        name, keys, place, has_gauss, gauss = states["numpy"]
        np.random.set_state((name, np.asarray(keys), place, has_gauss, gauss))
        version, numbers, spare = states["python"]
        random.setstate((version, tuple(int(number) for number in numbers), spare))

    def _emit_progress(self) -> None:
        tally, total = self._tally, len(self._feed.rows)
        loss = tally.loss_sum / tally.loss_count if tally.loss_count else None
        rows = min(self._run.batch * self._plan.batch_size, total)
        self._context.emit(EpochProgress(self._run.epoch, rows, total, loss))

    def _emit_steps(self, first_step: int) -> None:
        parts = self._context.allgather(np.array(self._steps, np.float64).reshape(-1, 3))
        parts = [part for part in parts if len(part)]
        if self._place.rank == 0 and parts:
            # Workers that do not run in lockstep may have stopped at different steps.
            longest = max(parts, key=len)
            sums = np.zeros((len(longest), 2))
            for part in parts:
                sums[: len(part)] += part[:, :2]
            with np.errstate(invalid="ignore", divide="ignore"):
                values = {"loss": sums[:, 0] / sums[:, 1], "lr": longest[:, 2]}
            self._context.emit(StepValues(first_step + 1, values))


def _with_first(batch: Batch, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield a batch that was taken from a stream, then the rest of the stream."""
    with closing(batches):  # type: ignore[type-var]
        yield batch
        yield from batches


def _kind(callback: Callback) -> str:
    """Return the name of a callback's class, or of the class that it wraps."""
    return type(getattr(callback, "callback", callback)).__name__


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _packed(callback: Callback) -> bytes | None:
    """Pickle a callback for its way back to the user; None if that fails."""
    try:
        return bytes(cloudpickle.dumps(callback.__getstate__()))
    except Exception:
        return None
