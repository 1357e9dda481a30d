"""Runs a model over one shard after another, wherever the shards are stored, whatever the framework."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.backends.base import Replica
from orca.backends.worker.job import Job
from orca.errors import ArgumentError
from orca.shards.adapters.selection import features_of
from orca.shards.columns import Columns, assemble, flat
from orca.shards.prefetch import ahead
from orca.shards.shard_formats import arrow_column
from orca.shards.tree import Tree, join_rows, kind_of, refuse_masks, row_count, take_rows

_PIECE = 8
"""Number of batches of columns that become arrays at once."""


class _Models:
    """The model that a process keeps between shards."""

    def __init__(self) -> None:
        self._key: tuple[str, int] | None = None
        self._replica: Replica | None = None
        # Held while the model is built, so that threads which predict at once build it once.
        self._lock = threading.RLock()

    def get(self, job: Job, threads: int | None) -> Replica:
        """Return the model in the job's state, built unless it is the one kept."""
        with self._lock:
            if self._replica is None or self._key != (job.owner, job.version):
                replica = job.backend.build_alone(job.spec, job.seed, threads)
                if job.state is not None:
                    replica.load_state(job.state)
                self._key, self._replica = (job.owner, job.version), replica
            return self._replica

    def forget(self) -> None:
        """Drop the model, when its framework starts over."""
        self._key = self._replica = None


models = _Models()


@dataclass(frozen=True)
class Predict:
    """Runs the model over one shard; the engine ships it to wherever the shards are stored."""

    job: Job
    batch_size: int
    threads: int | None
    feature_cols: Columns = None
    together: bool = True
    output_cols: tuple[str, ...] | None = None

    def __call__(self, shard: Any) -> Any:
        return with_outputs(shard, self._outputs(self._compute(shard)))

    def outputs(self, shard: Any) -> dict[str, Tree]:
        """Return only the outputs."""
        return {"output": self._compute(shard)}

    def tables(self, tables: Iterator[Any]) -> Iterator[Any]:
        """Yield the outputs of one Arrow table after another; the next ones arrive while this one is computed."""
        for features in ahead(map(self._assembled, tables), depth=1):
            yield self._named(self.run(features))

    def run(self, features: Tree) -> Tree:
        """Return the outputs for rows."""
        refuse_masks(features)
        if not row_count(features):
            return models.get(self.job, self.threads).predict_nothing(features)
        return self._joined(iter([features]))

    def like(self, features: Tree) -> Any:
        """Return what `tables` would yield for such features, computed in this process, which keeps nothing of it."""
        outputs = self.job.backend.framework.outputs_like(self.job.spec, features)
        return self._named(self.fresh().predict_step(features) if outputs is None else outputs)

    def fresh(self) -> Replica:
        """Build a model in this process that nobody else uses and that is not kept."""
        # A copy: the user's own model object is in this process.
        replica = self.job.backend.build_alone(copy.deepcopy(self.job.spec), self.job.seed, 0)
        if self.job.state is not None:
            replica.load_state(self.job.state)
        return replica

    def _compute(self, shard: Any) -> Tree:
        return self.run(features_of(shard)) if self.feature_cols is None else self._run_columns(shard)

    def _assembled(self, table: Any) -> Any:
        return assemble(table, self.feature_cols, "feature_cols", self.together)

    def _run_columns(self, shard: Any) -> Any:
        """Convert columns to arrays piece by piece, while the model computes earlier pieces."""
        if kind_of(shard) not in ("frame", "table") or not row_count(shard):
            return self.run(self._assembled(shard))
        size = _PIECE * self.batch_size
        pieces = (take_rows(shard, low, low + size) for low in range(0, row_count(shard), size))
        return self._joined(ahead(map(self._assembled, pieces), depth=1))

    def _joined(self, pieces: Iterator[Any]) -> Any:
        size = self.batch_size
        batches = (take_rows(piece, low, low + size) for piece in pieces for low in range(0, row_count(piece), size))
        return join_rows(list(models.get(self.job, self.threads).predict_stream(batches)))

    def _outputs(self, output: Tree) -> dict[str, Any]:
        """Name the outputs; none may replace a feature."""
        named = name_outputs(output, self.output_cols)
        taken = [name for name in named if name in flat(self.feature_cols)]
        if taken:
            raise ArgumentError(
                f"The model's output {taken[0]!r} is called like a feature, which it would replace. Choose other names "
                "with output_cols=."
            )
        return named

    def _named(self, output: Any) -> Any:
        import pyarrow as pa

        named = self._outputs(output)
        # Neither Spark nor most readers of Arrow support float16.
        wide = {key: value.astype("f4") if value.dtype == np.float16 else value for key, value in named.items()}
        return pa.table({key: arrow_column(value) for key, value in wide.items()})


def with_outputs(shard: Any, named: dict[str, Any]) -> Any:
    """Add outputs to a shard, as entries of a dict or columns of a frame or table; equal names are replaced."""
    kind = kind_of(shard)
    if kind == "frame":
        return shard.assign(**{name: array if array.ndim == 1 else list(array) for name, array in named.items()})
    if kind == "table":
        for name, array in named.items():
            index = shard.schema.get_field_index(name)
            column = arrow_column(array)
            shard = shard.append_column(name, column) if index < 0 else shard.set_column(index, name, column)
        return shard
    return {**shard, **named} if isinstance(shard, dict) else named


def name_outputs(output: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Name the model's outputs: by `names`, or its own names, or prediction, or prediction_0, prediction_1, ...

    An output within another one has the names of both, as prediction_1_mean.

    >>> sorted(name_outputs((1, 2)))
    ['prediction_0', 'prediction_1']
    >>> sorted(name_outputs((1, {"mean": 2})))
    ['prediction_0', 'prediction_1_mean']
    >>> name_outputs(1, ["score"])
    {'score': 1}
    """
    named: dict[str, Any] = {}
    if isinstance(output, dict):
        for key, value in output.items():
            named |= _nested(str(key), value)
    else:
        named = _nested("prediction", output)
    if names is None:
        return named
    if len(names) != len(named):
        raise ArgumentError(f"output_cols={list(names)}: the model has {len(named)} outputs ({', '.join(named)}).")
    return dict(zip(names, named.values(), strict=True))


def _nested(name: str, output: Any) -> dict[str, Any]:
    """Return the arrays of an output by names that begin with its own."""
    if isinstance(output, dict):
        parts = [(str(key), value) for key, value in output.items()]
    elif isinstance(output, list | tuple):
        parts = [(str(index), value) for index, value in enumerate(output)]
    else:
        return {name: output}
    return {full: leaf for key, value in parts for full, leaf in _nested(f"{name}_{key}", value).items()}
