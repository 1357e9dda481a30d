"""What every rank does in fit, evaluate and predict, whatever the framework."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from orca.backends.base import Backend, Outcome, Replica, State
from orca.errors import DataError
from orca.shards.columns import Columns, assemble
from orca.shards.feed import Batch, Feed, Rows, share
from orca.shards.forms import arrow_column
from orca.shards.prefetch import ahead
from orca.shards.tree import join_rows, kind_of, row_count, take_rows, tree_map

if TYPE_CHECKING:
    from orca.launch.base import Rank
    from orca.launch.rank import RankContext
    from orca.metrics import Metric

PROGRESS_SECONDS = 0.1
SURVEY_ROWS = 1 << 16


@dataclass(frozen=True)
class Job:
    """Which model, in which state, a rank has to work with."""

    backend: Backend
    spec: Any
    owner: str
    version: int
    state: State | None
    seed: int
    metrics: Sequence[Metric] = ()


@dataclass(frozen=True)
class FitPlan:
    """How long and in which order to train."""

    first_epoch: int
    epochs: int
    batch_size: int
    shuffle: bool
    validate: bool


class Tally:
    """Exact sums of loss and metrics over the rows that one rank has seen; tallies of ranks can be merged."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = metrics
        self.loss_sum = 0.0
        self.loss_count = 0.0
        self.rows = 0
        self.states: list[Any] = [metric.empty() for metric in metrics]

    def add(self, outcome: Outcome, rows: int) -> None:
        self.loss_sum += outcome.loss_sum
        self.loss_count += outcome.loss_count
        self.rows += rows
        if self.metrics and rows:
            self.states = [
                metric.update(state, outcome.target, outcome.output)
                for metric, state in zip(self.metrics, self.states, strict=True)
            ]

    def merged(self, context: RankContext, prefix: str = "") -> dict[str, float]:
        """The result over all ranks, the same on each of them."""
        shares = context.allgather((self.loss_sum, self.loss_count, self.states))
        count = sum(part[1] for part in shares)
        result = {f"{prefix}loss": sum(part[0] for part in shares) / count} if count else {}
        for index, metric in enumerate(self.metrics):
            state = metric.merge([part[2][index] for part in shares])
            result[f"{prefix}{metric.name}"] = float(metric.compute(state))
        return result


def _replica(context: RankContext, job: Job) -> Replica:
    """The rank's replica in the job's state: the warm one if it is that already, else a new one."""
    owner, version, replica = context.memory.get("replica", (None, -1, None))
    if owner != job.owner or replica is None:
        context.memory.pop("replica", None)
        replica = job.backend.build(job.spec, context, job.seed)
        version = -1
    if version != job.version and job.state is None and job.version > 0:
        raise RuntimeError("this rank lacks the model's state; call the estimator's shutdown() and try again")
    if version != job.version and job.state is not None:
        replica.load_state(job.state)
    context.memory["replica"] = (job.owner, job.version, replica)
    return replica  # type: ignore[no-any-return]


def fit_on_rank(context: RankContext, job: Job, plan: FitPlan) -> tuple[list[dict[str, Any]], State | None]:
    """Train; return the epoch records and, from rank 0, the new state."""
    place = context.place
    replica = _replica(context, job)
    rows = Rows(context.sources["train"])
    feed = Feed(
        rows,
        rank=place.rank,
        world=place.world,
        batch_size=plan.batch_size,
        seed=job.seed,
        shuffle=plan.shuffle,
    )
    validation = Rows(context.sources["validation"]) if plan.validate else None
    if not len(rows):
        raise DataError("There is no row to train on: all shards are empty.")
    replica.agree(context.allgather([replica.survey(part) for part in _chunks(rows, place, SURVEY_ROWS)]))
    records: list[dict[str, Any]] = []
    want_output = bool(job.metrics)
    for epoch in range(plan.first_epoch, plan.first_epoch + plan.epochs):
        replica.reseed(job.seed, epoch, place.rank)
        began = told = time.monotonic()
        tally = Tally(job.metrics)
        done = 0
        if place.rank == 0:
            context.emit("progress", epoch=epoch + 1, rows=0, total=len(rows), loss=None)
        for batch in _stream(feed, epoch, place):
            outcome = replica.train_step(batch, want_output)
            tally.add(outcome, batch.rows)
            done += batch.total
            now = time.monotonic()
            if place.rank == 0 and now - told > PROGRESS_SECONDS:
                told = now
                loss = tally.loss_sum / max(tally.loss_count, 1)
                context.emit("progress", epoch=epoch + 1, rows=done, total=len(rows), loss=loss)
        replica.settle()
        seconds = time.monotonic() - began
        record: dict[str, Any] = {"epoch": epoch + 1, **tally.merged(context)}
        if validation is not None:
            record |= _evaluate(context, replica, validation, plan.batch_size, job.metrics, "val_")
        rate = replica.learning_rate()
        if rate is not None:
            record["lr"] = rate
        record |= {"rows": len(rows), "seconds": seconds, "rows_per_s": len(rows) / max(seconds, 1e-9)}
        records.append(record)
        if place.rank == 0:
            context.emit("epoch", record=record)
    context.memory["replica"] = (job.owner, job.version + 1, replica)
    return records, replica.state() if place.rank == 0 else None


def _stream(feed: Feed, epoch: int, place: Rank) -> Iterator[Batch]:
    """The epoch's batches, gathered ahead on a thread where a core is free for it or the disk has to be read."""
    batches = feed.epoch(epoch)
    waits = feed.rows.nbytes > psutil.virtual_memory().available
    return ahead(batches) if place.threads > 1 or waits else batches


def _evaluate(
    context: RankContext,
    replica: Replica,
    rows: Rows,
    batch_size: int,
    metrics: Sequence[Metric],
    prefix: str,
) -> dict[str, float]:
    tally = Tally(metrics)
    for part in _chunks(rows, context.place, max(1, batch_size // context.place.world)):
        tally.add(replica.evaluate_step(part, bool(metrics)), row_count(part))
    return tally.merged(context, prefix)


def _chunks(rows: Rows, place: Rank, size: int) -> Iterator[Any]:
    """This rank's even share of the rows, piece by piece."""
    start, stop = share(len(rows), place.rank, place.world)
    for low in range(start, stop, size):
        yield rows.slice(low, min(low + size, stop))


def evaluate_on_rank(context: RankContext, job: Job, batch_size: int) -> dict[str, float]:
    """Score all rows of the source; every rank returns the same exact result."""
    replica = _replica(context, job)
    rows = Rows(context.sources["data"])
    if not len(rows):
        raise DataError("There is no row to evaluate: all shards are empty.")
    return _evaluate(context, replica, rows, batch_size, job.metrics, "")


_predictor: tuple[str, int, Replica] | None = None


@dataclass(frozen=True)
class Predict:
    """Runs the model over one shard; the engine ships it to wherever the shards lie."""

    job: Job
    batch_size: int
    threads: int | None
    only_prediction: bool = False
    feature_cols: Columns = None
    together: bool = True

    def __call__(self, shard: Any) -> Any:
        if self.feature_cols is not None:
            features = assemble(shard, self.feature_cols, "feature_cols", self.together)
        else:
            features = features_of(shard)
        output = self._run(features)
        if self.only_prediction:
            return {"output": output}
        return with_outputs(shard, name_outputs(output))

    def _run(self, features: Any) -> Any:
        rows = row_count(features)
        replica = self._model()
        # A shard without rows still gets a prediction of the right shape, from one row of zeros cut off again.
        if rows == 0:
            features = tree_map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), features)
        cuts = range(0, max(rows, 1), self.batch_size)
        parts = [replica.predict_step(take_rows(features, low, low + self.batch_size)) for low in cuts]
        return take_rows(join_rows(parts), 0, rows)

    def _model(self) -> Replica:
        """One model per process, kept for the next shard."""
        global _predictor
        job = self.job
        if _predictor is None or _predictor[:2] != (job.owner, job.version):
            replica = job.backend.build_alone(job.spec, job.seed, self.threads)
            if job.state is not None:
                replica.load_state(job.state)
            _predictor = job.owner, job.version, replica
        return _predictor[2]


def features_of(shard: Any) -> Any:
    """The model's inputs in a shard: the entry "x" of a dict that has one, else all of it."""
    return shard["x"] if isinstance(shard, dict) and "x" in shard else shard


def with_outputs(shard: Any, named: dict[str, Any]) -> Any:
    """The shard with the outputs beside its rows: new entries of a dict, new columns of a frame or table."""
    kind = kind_of(shard)
    if kind == "frame":
        return shard.assign(**{name: array if array.ndim == 1 else list(array) for name, array in named.items()})
    if kind == "table":
        for name, array in named.items():
            shard = shard.append_column(name, arrow_column(array))
        return shard
    return {**shard, **named} if isinstance(shard, dict) else named


def name_outputs(output: Any) -> dict[str, Any]:
    """Name the model's outputs: its own names, or prediction, or prediction_0, prediction_1, ...

    >>> sorted(name_outputs((1, 2)))
    ['prediction_0', 'prediction_1']
    """
    if isinstance(output, dict):
        return dict(output)
    if isinstance(output, list | tuple):
        return {f"prediction_{index}": value for index, value in enumerate(output)}
    return {"prediction": output}
