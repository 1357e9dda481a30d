"""What every rank does to score and predict, and the exact sums behind every result, whatever the framework."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.backends.base import Backend, Outcome, OwnMetrics, Replica, Seat, State
from orca.errors import ArgumentError, DataError
from orca.shards.columns import Columns, assemble
from orca.shards.feed import Rows, share
from orca.shards.forms import arrow_column
from orca.shards.prefetch import ahead
from orca.shards.tree import join_rows, kind_of, row_count, take_rows, tree_map

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


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


class Tally:
    """Exact sums of loss and metrics over the rows that one rank has seen; tallies of ranks can be merged."""

    def __init__(self, metrics: Sequence[Metric], own: OwnMetrics | None = None) -> None:
        self.metrics = metrics
        self.own = own
        self.own_sums: list[Any] | None = None
        """The sums of several ranks' own metrics, in a tally that joins them."""
        self._kept: list[Any] | None = None
        """This rank's own sums, once its metrics have been given those of all ranks."""
        self.loss_sum = 0.0
        self.loss_count = 0.0
        self.rows = 0
        self.states: list[Any] = [metric.empty() for metric in metrics]
        self.extra: dict[str, float] = {}

    def add(self, outcome: Outcome, rows: int) -> None:
        self.loss_sum += outcome.loss_sum
        self.loss_count += outcome.loss_count
        self.rows += rows
        for name, value in outcome.extra.items():
            self.extra[name] = self.extra.get(name, 0.0) + value
        if self.metrics and rows and outcome.output is not None:
            self.states = [
                metric.update(state, outcome.target, outcome.output)
                for metric, state in zip(self.metrics, self.states, strict=True)
            ]

    def merged(self, context: RankContext, prefix: str = "") -> dict[str, float]:
        """The result over all ranks, the same on each of them."""
        told = self.told()
        self._kept = told["own"]
        total = Tally.joined(self.metrics, context.allgather(told))
        count = total.loss_count
        result = {f"{prefix}loss": total.loss_sum / count} if count else {}
        result |= {f"{prefix}{name}": value / max(total.rows, 1) for name, value in total.extra.items()}
        for metric, state in zip(self.metrics, total.states, strict=True):
            result[f"{prefix}{metric.name}"] = float(metric.compute(state))
        if self.own is not None and total.own_sums is not None:
            # A rank that has seen no row may not know its metrics yet.
            results = max(context.allgather(self.own.results(total.own_sums)), key=len)
            result |= {f"{prefix}{name}": value for name, value in results.items()}
        return result

    def told(self) -> dict[str, Any]:
        """The sums as plain values, for other ranks and for checkpoints."""
        own = self.own.sums() if self._kept is None and self.own is not None else self._kept
        return {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "rows": self.rows,
            "states": self.states,
            "extra": self.extra,
            "own": own,
        }

    @classmethod
    def joined(cls, metrics: Sequence[Metric], told: Sequence[dict[str, Any]]) -> Tally:
        """The sums of several ranks as one."""
        total = cls(metrics)
        total.loss_sum = sum(part["loss_sum"] for part in told)
        total.loss_count = sum(part["loss_count"] for part in told)
        total.rows = sum(part["rows"] for part in told)
        for part in told:
            for name, value in part["extra"].items():
                total.extra[name] = total.extra.get(name, 0.0) + value
        for index, metric in enumerate(metrics):
            total.states[index] = metric.merge([part["states"][index] for part in told])
        owned = [part["own"] for part in told if part.get("own") is not None]
        if owned:
            # Metrics are made with the first row: a rank with fewer of them has seen none.
            most = max(map(len, owned))
            total.own_sums = [sum(values) for values in zip(*(o for o in owned if len(o) == most), strict=True)]
        return total


def replica_of(context: RankContext, job: Job) -> Replica:
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


def score(
    context: RankContext,
    replica: Replica,
    rows: Rows,
    batch_size: int,
    metrics: Sequence[Metric],
    prefix: str,
    steps: int | None = None,
) -> dict[str, float]:
    """Loss and metrics over all rows, or those of the first steps, each rank scoring an even share."""
    tally = Tally(metrics, replica.own_metrics)
    if tally.own is not None:
        tally.own.reset()
    seat = replica.seat(context.place)
    count = len(rows) if steps is None else min(len(rows), steps * batch_size)
    for part in chunks(rows, seat, max(1, batch_size // seat.world), count):
        tally.add(replica.evaluate_step(part, bool(metrics)), row_count(part))
    return tally.merged(context, prefix)


def chunks(rows: Rows, seat: Seat, size: int, count: int) -> Iterator[Any]:
    """This rank's even share of the first `count` rows, piece by piece."""
    if seat.rank is None:
        return
    start, stop = share(count, seat.rank, seat.world)
    for low in range(start, stop, size):
        yield rows.slice(low, min(low + size, stop))


def evaluate_on_rank(context: RankContext, job: Job, batch_size: int, steps: int | None = None) -> dict[str, float]:
    """Score all rows of the source, or those of the first steps; every rank returns the same exact result."""
    replica = replica_of(context, job)
    rows = Rows(context.sources["data"])
    if not len(rows):
        raise DataError("There is no row to evaluate: all shards are empty.")
    return score(context, replica, rows, batch_size, job.metrics, "", steps)


_PIECE = 8
"""How many batches of columns become arrays at once."""

_predictor: tuple[str, int, Replica] | None = None
_predictor_lock = threading.RLock()
"""Held while the model is made, so that threads which predict at once make it once."""


def forget_predictor() -> None:
    """Drop the model that this process keeps for predictions, when its framework starts anew."""
    global _predictor
    _predictor = None


@dataclass(frozen=True)
class Predict:
    """Runs the model over one shard; the engine ships it to wherever the shards lie."""

    job: Job
    batch_size: int
    threads: int | None
    only_prediction: bool = False
    feature_cols: Columns = None
    together: bool = True
    output_cols: tuple[str, ...] | None = None

    def __call__(self, shard: Any) -> Any:
        output = self.run(features_of(shard)) if self.feature_cols is None else self._run_columns(shard)
        if self.only_prediction:
            return {"output": output}
        return with_outputs(shard, name_outputs(output, self.output_cols))

    def tables(self, tables: Iterator[Any]) -> Iterator[Any]:
        """The outputs for Arrow table after table, as tables; the next ones arrive while this one is computed."""
        for features in ahead(map(self._assembled, tables), depth=1):
            yield self._named(self.run(features))

    def run(self, features: Any) -> Any:
        """The outputs for rows, joined."""
        if not row_count(features):
            return self._model().predict_nothing(features)
        return self._joined(iter([features]))

    def like(self, features: Any) -> Any:
        """What `tables` would give for such features, found in this process, which keeps nothing of it."""
        known = self.job.backend.outputs_like(self.job.spec, features)
        return self._named(self.fresh().predict_step(features) if known is None else known)

    def fresh(self) -> Replica:
        """A model of this process that nobody else uses and that is not kept."""
        # A copy: the user's own model object is in this process.
        replica = self.job.backend.build_alone(copy.deepcopy(self.job.spec), self.job.seed, 0)
        if self.job.state is not None:
            replica.load_state(self.job.state)
        return replica

    def _assembled(self, table: Any) -> Any:
        return assemble(table, self.feature_cols, "feature_cols", self.together)

    def _run_columns(self, shard: Any) -> Any:
        """Columns become arrays piece by piece, while the pieces before are computed."""
        if kind_of(shard) not in ("frame", "table") or not row_count(shard):
            return self.run(self._assembled(shard))
        size = _PIECE * self.batch_size
        pieces = (take_rows(shard, low, low + size) for low in range(0, row_count(shard), size))
        return self._joined(ahead(map(self._assembled, pieces), depth=1))

    def _joined(self, pieces: Iterator[Any]) -> Any:
        size = self.batch_size
        batches = (take_rows(piece, low, low + size) for piece in pieces for low in range(0, row_count(piece), size))
        return join_rows(list(self._model().predict_stream(batches)))

    def _named(self, output: Any) -> Any:
        import pyarrow as pa

        named = name_outputs(output, self.output_cols)
        # Neither Spark nor most readers of Arrow know halves.
        wide = {key: value.astype("f4") if value.dtype == np.float16 else value for key, value in named.items()}
        return pa.table({key: arrow_column(value) for key, value in wide.items()})

    def _model(self) -> Replica:
        """One model per process, kept for the next shard."""
        global _predictor
        job = self.job
        with _predictor_lock:
            if _predictor is None or _predictor[:2] != (job.owner, job.version):
                replica = job.backend.build_alone(job.spec, job.seed, self.threads)
                if job.state is not None:
                    replica.load_state(job.state)
                _predictor = job.owner, job.version, replica
            return _predictor[2]


@dataclass(frozen=True)
class FirstRows:
    """Takes the features of the first rows of a shard."""

    count: int
    feature_cols: Columns = None
    together: bool = True

    def __call__(self, shard: Any) -> Any:
        if self.feature_cols is None:
            return copied(take_rows(features_of(shard), 0, self.count))
        if kind_of(shard) not in ("frame", "table"):
            return copied(take_rows(assemble(shard, self.feature_cols, "feature_cols", self.together), 0, self.count))
        return copied(assemble(take_rows(shard, 0, self.count), self.feature_cols, "feature_cols", self.together))


def copied(features: Any) -> Any:
    """The same rows in memory of their own."""
    return tree_map(np.array, features)


def features_of(shard: Any) -> Any:
    """The model's inputs in a shard: the entry "x" of a dict that has one, else all of it."""
    return shard["x"] if isinstance(shard, dict) and "x" in shard else shard


def with_outputs(shard: Any, named: dict[str, Any]) -> Any:
    """The shard with the outputs beside its rows: entries of a dict, columns of a frame or table.

    What had such a name before is replaced.
    """
    kind = kind_of(shard)
    if kind == "frame":
        return shard.assign(**{name: array if array.ndim == 1 else list(array) for name, array in named.items()})
    if kind == "table":
        for name, array in named.items():
            known = shard.schema.get_field_index(name)
            column = arrow_column(array)
            shard = shard.append_column(name, column) if known < 0 else shard.set_column(known, name, column)
        return shard
    return {**shard, **named} if isinstance(shard, dict) else named


def name_outputs(output: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Name the model's outputs: as told, or its own names, or prediction, or prediction_0, prediction_1, ...

    >>> sorted(name_outputs((1, 2)))
    ['prediction_0', 'prediction_1']
    >>> name_outputs(1, ["score"])
    {'score': 1}
    """
    if isinstance(output, dict):
        found = dict(output)
    elif isinstance(output, list | tuple):
        found = {f"prediction_{index}": value for index, value in enumerate(output)}
    else:
        found = {"prediction": output}
    if names is None:
        return found
    if len(names) != len(found):
        raise ArgumentError(f"output_cols={list(names)}: the model has {len(found)} outputs ({', '.join(found)}).")
    return dict(zip(names, found.values(), strict=True))
