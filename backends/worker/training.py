"""Training on a rank, for any framework: epochs, steps, callbacks, checkpoints, resuming."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
import psutil

from orca.backends.parts import Parts, checkpoint_path
from orca.backends.worker.events import Checkpoint, EpochEnd, EpochProgress, MoreWorkers, NotReached, Scores
from orca.backends.worker.job import Job, keep_replica, replica_of
from orca.backends.worker.labels import Largest, check_labels, check_part, largest_of
from orca.backends.worker.not_finite import batch_not_finite, where_not_finite
from orca.backends.worker.opening import AnyRows, create_feed, open_rows, open_source
from orca.backends.worker.plan import FitPlan, FitResult
from orca.backends.worker.position import Position
from orca.backends.worker.randomness import load_random_states, random_states, reseed
from orca.backends.worker.scoring import score
from orca.backends.worker.step_log import StepLog
from orca.backends.worker.tally import Tally
from orca.callbacks import BATCH_HOOKS, Callback, Run, overrides
from orca.errors import DataError
from orca.shards.adapters.selection import features_of
from orca.shards.feed import Batch, Rows
from orca.shards.orders import ScoredRows, TrainingRows, share
from orca.shards.prefetch import ahead
from orca.shards.streams import IdleFeed, StreamFeed
from orca.shards.tree import take_rows, tree_map

if TYPE_CHECKING:
    from orca.backends.base import State
    from orca.launch.base import Needs
    from orca.launch.rank import RankContext

PROGRESS_SECONDS = 0.1


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
        self._rows = self._open("train", self._needs, plan.steps_per_epoch is None and plan.max_steps is None)
        begun = plan.first_epoch if plan.resume is None else plan.resume.begun
        self._feed = create_feed(self._rows, self._needs, self._seat, job.seed, plan.steps_per_epoch, begun)
        limit = None if plan.validation_steps is None else plan.validation_steps * plan.batch_size
        scored = ScoredRows(self._seat.world, limit)
        self._validation = self._open("validation", scored, limit is None) if plan.validate else None
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
        self._count_batches()
        self._run.own_epoch = plan.first_epoch
        self._hooked = {hook: [c for c in self._callbacks if overrides(c, hook)] for hook in BATCH_HOOKS}
        self._asks = any(c.acts_on_batches for hooked in self._hooked.values() for c in hooked)
        # A custom step does not return outputs: metrics are then for validation only.
        self._metrics = job.metrics if self._replica.gives_outputs else ()
        self._tally = Tally(self._metrics, self._replica.own_metrics)
        self._steps = StepLog()
        self._reached: bool | None = None
        """Whether all ranks can write to the folder of checkpoints; None until it is needed."""

    def _open(self, name: str, needs: Needs, ends: bool) -> AnyRows:
        if name in self._plan.fetched:
            return open_source(self._context, name, self._job, self._seat, ends)
        return open_rows(self._context, name, needs, self._seat)

    def _count_batches(self) -> None:
        """Note how many steps the epoch has; 0 while only its end can tell."""
        steps = self._feed.steps
        self._run.batches = 0 if steps is None else min(steps, self._plan.steps_per_epoch or steps)

    def run(self) -> FitResult:
        """Train, and close what was opened for it."""
        with closing(self._feed), closing(self._validation or self._feed):
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
        paused = False
        self._hook("before_run")
        for epoch in range(max(plan.first_epoch, run.own_epoch), plan.last_epoch):
            if run.reason is not None or self._is_over():
                break
            record = self._epoch(epoch, first_batch)
            if record is not None:
                records.append(record)
            first_batch = 0
            paused = self._pauses(epoch + 1)
            if paused:
                break
        if not paused:
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
            paused,
        )

    def _pauses(self, epoch: int) -> bool:
        """Whether the driver has room for more workers, which then continue with this epoch."""
        plan = self._plan
        over = epoch >= plan.last_epoch or self._run.reason is not None or self._is_over()
        return plan.reduced and not over and bool(self._context.ask(MoreWorkers(self._run.step)))

    def _example(self) -> Any:
        rows = self._rows
        features = features_of(rows.slice(0, 1)) if isinstance(rows, Rows) else self._form
        return tree_map(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), features)

    def _epoch(self, epoch: int, first_batch: int) -> dict[str, Any] | None:
        """Run one epoch, or the rest of it; return None if a callback stopped the run before it began."""
        run, plan, replica, context = self._run, self._plan, self._replica, self._context
        run.epoch, run.batch, run.record, run.loss = epoch + 1, first_batch, {}, None
        if not first_batch:
            self._reseed(epoch)
            self._tally, self._steps = Tally(self._metrics, replica.own_metrics), StepLog()
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
        rows = self._feed.rows_until(run.batch)
        done = rows - self._feed.rows_until(first_batch)
        record: dict[str, Any] = {"epoch": epoch + 1, **self._tally.merged(context)}
        last = epoch + 1 == plan.last_epoch or run.reason is not None or self._is_over()
        freq = plan.validation_freq
        if self._validation is not None and (last or (freq is not None and (epoch + 1) % freq == 0)):
            record |= self._score()
        rate = replica.learning_rate()
        if rate is not None:
            record["lr"] = rate
        record |= {"rows": rows, "seconds": seconds, "rows_per_s": done / max(seconds, 1e-9)}
        run.record = record
        self._hook("after_epoch")
        if plan.steps_wanted:
            self._steps.emit(context, first_step)
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
                    raise self._nan_error(batch)
                self._tally.add(outcome, batch.rows)
                run.batch += 1
                run.step += 1
                self._count_batches()
                if plan.steps_wanted:
                    self._steps.add(outcome, replica.learning_rate())
                self._validate()
                if after:
                    run.loss_parts = outcome.loss_sum, outcome.loss_count
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

    def _score(self) -> dict[str, float]:
        """Return the results on the validation rows, over all ranks."""
        assert self._validation is not None
        plan = self._plan
        limits = plan.batch_size, self._job.metrics, "val_", plan.validation_steps
        return score(self._context, self._replica, self._validation, *limits)

    def _validate(self) -> None:
        """Validate after a step, if that is due; not after the last step, where the epoch's validation does."""
        run, trigger = self._run, self._plan.validation_trigger
        last = run.batch == run.batches or self._is_over()
        if trigger is None or self._validation is None or last or not trigger.after_step(run.step):
            return
        run.scores = self._score()
        if self._place.rank == 0:
            self._context.emit(Scores(run.epoch, run.step, run.scores))

    def _nan_error(self, batch: Batch) -> DataError:
        # Rows that are produced here are not kept: those of the step are all there is to look at.
        names, kept = self._plan.feature_names, isinstance(self._rows, Rows)
        found = where_not_finite(self._rows, names) if isinstance(self._rows, Rows) else batch_not_finite(batch, names)
        advice = (
            f"{'The data' if kept else 'The batch'} has {found}. Fill these values or drop the rows"
            if found
            else f"{'The data' if kept else 'The batch'} has no nan or inf. Lower the learning rate, or clip gradients "
            "with clip_norm="
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
        batches = self._batches(epoch, first_batch)
        if not isinstance(self._rows, Rows):
            return batches  # they read ahead by themselves
        waits = self._rows.nbytes > psutil.virtual_memory().available
        return ahead(batches) if self._place.threads > 1 or waits else batches

    def _batches(self, epoch: int, first_batch: int) -> Iterator[Batch]:
        """Yield the epoch's batches as the feed does, which then knows how many the run can still use."""
        run, plan = self._run, self._plan
        if isinstance(self._feed, StreamFeed) and plan.max_steps is not None:
            self._feed.left = plan.max_steps - (run.step - plan.first_step)
        return self._feed.epoch(epoch, first_batch)

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
            run, feed = self._run, self._feed
            rows = feed.rows_until(run.batch)
            positions = self._context.allgather((run.batch, run.step, run.reason, rows, feed.steps))
            run.batch, run.step = positions[0][:2]
            run.reason = next((position[2] for position in positions if position[2] is not None), None)
            if isinstance(feed, IdleFeed):
                feed.passed, feed.steps = positions[0][3:]
                self._count_batches()

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
        """Send the state to the driver, which writes it while the ranks continue; without what the ranks wrote."""
        run = self._run
        state, parts = (self._save_parts() if path is None else None) or (self._replica.state(), None)
        position = self._position()
        if self._place.rank == 0:
            self._context.emit(Checkpoint(state, position, run.epoch, run.step, self._example(), path, remove, parts))

    def _save_parts(self) -> tuple[State, Parts | None] | None:
        """Write the state in parts, if the ranks hold it in parts and all of them reach the folder."""
        reach = self._plan.reach
        if reach is None:
            return None
        if self._reached is None:
            seen = self._context.allgather((reach.sees(), self._place.host))
            missing = {rank: host for rank, (sees, host) in enumerate(seen) if not sees}
            self._reached = not missing
            if missing and self._place.rank == 0:
                self._context.emit(NotReached(missing))
        if not self._reached:
            return None
        token = self._context.allgather(uuid.uuid4().hex[:12])[0]
        return self._replica.save_parts(checkpoint_path(reach.folder, self._run.step), token)

    def _position(self) -> Position:
        """Return where this run stands; the same on every rank."""
        run, plan = self._run, self._plan
        # An epoch that is complete needs nothing remembered of it.
        inside = run.batch > 0 and run.batch != run.batches
        steps = self._steps.array()
        own = {"tally": self._tally.sums(), "steps": steps, **random_states(self._replica)} if inside else None
        return Position(
            epoch=run.epoch - 1 if inside else run.epoch,
            batch=run.batch if inside else 0,
            rows=self._feed.count,
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
        rows = self._rows
        if isinstance(rows, Rows):
            return rows.views(*self._part()), check_labels(self._replica, rows, *self._part())
        if self._seat.rank is None:
            return [], {}
        plan = self._plan
        epoch, first = plan.first_epoch, plan.resume.batch if plan.resume is not None else 0
        batches = self._batches(epoch, first)
        batch = next(batches, None)
        if batch is not None:
            # Each row is fetched once in an epoch, so the training continues with this stream.
            self._begun = epoch, first, _with_first(batch, batches)
        elif first:  # the checkpoint was written after the last step of a stream
            with closing(self._batches(epoch + 1, 0)) as batches:  # type: ignore[type-var]
                batch = next(batches, None)
        if batch is None:
            raise DataError("There is no row to train on: the data has none.")
        self._form = take_rows(features_of(batch.data), 0, 0)
        self._job.backend.framework.check_rows(self._job.spec, batch.data)
        return [batch.data], check_part(self._replica, batch.data)

    def _part(self) -> tuple[int, int]:
        """Return the rows (start, stop) that this rank checks before the training."""
        seat, count = self._seat, self._feed.count
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
        count = resume.rows if isinstance(self._feed, IdleFeed) else self._feed.count
        plan = self._plan
        resume.check(count, plan.batch_size, plan.shuffle, [metric.name for metric in self._metrics])
        ranks = resume.ranks
        alike = self._seat.rank is not None and len(ranks) == self._seat.world
        mine = ranks[self._seat.rank or 0] if alike else None
        if mine is not None:
            self._resume_tally([mine["tally"]])
            self._steps = StepLog(mine["steps"])
            load_random_states(self._replica, mine)
            return batch
        # Another number of ranks: the sums so far go on with one of them, random numbers start afresh.
        self._reseed(resume.epoch)
        parts = [part for part in ranks if part is not None] if self._place.rank == 0 else []
        self._resume_tally([part["tally"] for part in parts])
        self._steps = StepLog.summed([part["steps"] for part in ranks if part is not None], self._place.rank == 0)
        return batch

    def _resume_tally(self, sums: list[dict[str, Any]]) -> None:
        """Continue with the sums of one or more ranks."""
        self._tally = Tally.joined(self._metrics, sums)
        own = self._tally.own = self._replica.own_metrics
        if own is not None:
            own.reset()
            if self._tally.own_sums is not None:
                own.load(self._tally.own_sums)

    def _reseed(self, epoch: int) -> None:
        reseed(self._replica, self._job.seed, epoch, self._place.rank)

    def _emit_progress(self) -> None:
        tally, feed = self._tally, self._feed
        loss = tally.loss_sum / tally.loss_count if tally.loss_count else None
        progress = EpochProgress(self._run.epoch, feed.rows_until(self._run.batch), feed.count or None, loss)
        self._context.emit(progress)


def _with_first(batch: Batch, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield a batch that was taken from a stream, then the rest of the stream."""
    with closing(batches):  # type: ignore[type-var]
        yield batch
        yield from batches


def _kind(callback: Callback) -> str:
    """Return the name of a callback's class, or of the class that it wraps."""
    return type(getattr(callback, "callback", callback)).__name__


def _packed(callback: Callback) -> bytes | None:
    """Pickle a callback for its way back to the user; None if that fails."""
    try:
        return bytes(cloudpickle.dumps(callback.__getstate__()))
    except Exception:
        return None
