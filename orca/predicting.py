"""What `Estimator.predict` does: the rows go to the model where they lie, and come back in the form they had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orca.backends.registry import find
from orca.backends.worker.inference import FirstRows, Predict
from orca.backends.worker.job import Job
from orca.context import Context, current
from orca.core.arguments import check_count
from orca.core.machine import usable_cpus
from orca.core.pickling import check_picklable
from orca.errors import ArgumentError, DataError, suggest
from orca.saving import blank
from orca.shards.columns import Columns, flat
from orca.shards.convert import (
    Form,
    add_columns,
    check_features,
    check_frame,
    first_rows,
    from_frames,
    recognise,
    to_frames,
    to_shards,
    to_tree,
)
from orca.shards.tree import describe, join_rows, kind_of, row_count, take_rows

if TYPE_CHECKING:
    from orca.estimator import Estimator

SAMPLE = 32
"""Rows that a converted model is compared on with the model that it was made from."""
ACCELERATORS = ("openvino",)


@dataclass
class Source:
    """The data of a call: what kind it is, which columns to read, and where its rows lie."""

    data: Any
    kind: str
    form: Form
    shards: Any = None
    """The data as XShards, unless it is a Spark DataFrame or stays in this process."""

    @property
    def framed(self) -> bool:
        """Whether outputs go beside named columns."""
        return self.form.feature_cols is not None

    @property
    def here(self) -> bool:
        """Whether the rows stay in this process, and the model comes to them."""
        return self.shards is None and self.kind != "spark"

    def sample(self, count: int) -> Any:
        """The features of the first rows, brought into this process."""
        take = FirstRows(count, self.form.feature_cols, self.form.together)
        if self.kind == "spark":
            return take(first_rows(self.data, self.form, count))
        if self.shards is None:
            return take(self.data)
        found, rows = [], 0
        for part in self.shards.walk(take):
            found.append(part)
            rows += row_count(part)
            if rows >= count:
                break
        return take_rows(join_rows(found), 0, count)


def predict(
    est: Estimator,
    data: Any,
    batch_size: int | None,
    feature_cols: Columns,
    output_cols: str | Sequence[str] | None,
    accelerator: str | None,
) -> Any:
    """The model's outputs for the data, in the form of the data."""
    if batch_size is not None:
        batch_size = check_count("batch_size", batch_size)
    if accelerator is not None and accelerator not in ACCELERATORS:
        raise ArgumentError(
            f"accelerator={accelerator!r}: expected one of {', '.join(ACCELERATORS)}, or None."
            + suggest(str(accelerator), ACCELERATORS)
        )
    context = current()
    fast = est.backend.framework.inference_only or accelerator is not None
    # Nobody else computes meanwhile: a model that brings its own threads has no need of another process.
    alone = fast and est.workers == 1 and context.runtime == "local"
    source = _source(est, data, feature_cols, context, alone, batch_size)
    sample = None
    if fast:
        sample = source.sample(SAMPLE if accelerator is not None else 1)
        if not row_count(sample):
            sample = None
    if accelerator is not None and not est.backend.framework.inference_only:
        if sample is None:
            raise DataError(f"accelerator={accelerator!r} has to see a row of the data, which has none.")
        est = converted(est, sample)
    context.prefer(est.backend.traits.preload)
    if sample is not None:
        # All rows if they are here, as they cost nothing: a missing axis of rows cannot be seen in one row.
        whole = source.here and not source.framed
        est.backend.framework.check_features(est.spec, source.data["x"] if whole else sample)
    check_picklable(**est.spec.travels())
    step = _step(est, batch_size, output_cols, source, _threads(context, source))
    if source.kind == "spark":
        return add_columns(data, source.form, step.tables, _outputs_like(est, step, sample))
    if source.here:
        return step(data) if source.framed else step.run(source.data["x"])
    if source.framed:
        return from_frames(source.shards.transform_shard(step), source.kind)
    if source.kind == "shards":
        return source.shards.transform_shard(step)
    predicted = source.shards.transform_shard(replace(step, only_prediction=True))
    return join_rows([part["output"] for part in predicted.collect()])


def sample(est: Estimator, data: Any, feature_cols: Columns, count: int) -> Any:
    """The features of the first rows of anything that `predict` takes."""
    context = current()
    return _source(est, data, feature_cols, context, context.runtime == "local").sample(count)


def converted(est: Estimator, sample: Any, config: dict[str, Any] | None = None) -> Estimator:
    """The model as an OpenVINO estimator, compared on these rows; made once for every state of it."""
    key = est._owner, est._version, describe(sample), config
    if est._fast is None or est._fast[0] != key:
        backend = find("openvino", "openvino")
        from orca.backends.openvino.accelerating import accelerate

        job = Job(est.backend, est.spec, est._owner, est._version, est._state, est.seed)
        output = Predict(job, 1, 0).fresh().predict_step(sample)
        spec = accelerate(est.backend.framework, est.get_model(), sample, output, config)
        est._fast = key, type(est)(backend, spec, workers=est.workers, seed=est.seed)
    return est._fast[1]


def _outputs_like(est: Estimator, step: Predict, sample: Any = None) -> Any:
    """An example of the outputs, from rows of the last fit; made once for every state of the model."""
    if est.backend.framework.inference_only:
        return step.like(sample)
    if est._example is None:
        return None
    key = est._owner, est._version, step.output_cols
    if est._like is None or est._like[0] != key:
        est._like = key, step.like(blank(est._example))
    return est._like[1]


def _source(
    est: Estimator, data: Any, feature_cols: Columns, context: Context, alone: bool, batch_size: int | None = None
) -> Source:
    """Find out what the data is; `alone` says that rows of this process may stay in it."""
    kind = recognise(data)
    columns = _names(data, kind)
    if columns is not None or (kind == "shards" and feature_cols is not None):
        form = est._form(_columns(est, columns or [], feature_cols), None)
        if kind == "spark" or (alone and kind in ("frame", "table")):
            check_frame(data, form)
            return Source(data, kind, form)
        frames = to_frames(data, kind, est.workers)
        check_features(frames, form)
        return Source(data, kind, form, frames)
    # A dataset that was made for training brings labels, unless its parts may be the inputs of a model of several.
    several = (est.backend.framework.inputs(est.spec).count or 1) > 1 and not est.backend.framework.triples
    labelled = kind == "tf" or (kind in ("torch", "creator") and not several)
    form = est._form(None, None, est.backend.framework.batch_size(est.spec, batch_size), need_labels=False)
    form = replace(form, pairs=labelled)
    if kind == "shards":
        return Source(data, kind, form, data.to_engine(context.engine))
    names = list(est.backend.framework.inputs(est.spec).names)
    if isinstance(data, dict) and len(names) > 1 and set(names) <= set(data):
        data = {"x": data}  # also if one of the inputs is called "x"
    if alone and kind == "arrays":
        return Source(to_tree(data, None, need_labels=False, pairs=False), kind, form)
    # Fewer, larger tasks: one per worker, as each loads the model once.
    return Source(data, kind, form, to_shards(data, None, context.engine, form, parts=est.workers))


def _columns(est: Estimator, known: list[str], given: Columns) -> Columns:
    """The columns to read: as given, or those named like the model's inputs, in its order, or "features"."""
    names = list(est.backend.framework.inputs(est.spec).names)
    if given is not None:
        by_name = isinstance(given, list | tuple) and len(given) > 1 and set(names) == set(flat(given))
        return names if by_name else given
    return names if names and set(names) <= set(known) else ["features"]


def _names(data: Any, kind: str) -> list[str] | None:
    """The columns of anything that has named ones: frames, tables, and shards of them."""
    if kind == "shards":
        return next(data.walk(_columns_of))  # type: ignore[no-any-return]
    if kind == "ray":
        return list(data.columns() or [])
    if kind == "spark":
        return list(data.columns)
    return _columns_of(data)


def _columns_of(shard: Any) -> list[str] | None:
    kind = kind_of(shard)
    if kind not in ("frame", "table"):
        return None
    return [str(name) for name in (shard.column_names if kind == "table" else shard.columns)]


def _threads(context: Context, source: Source) -> int | None:
    if source.here:
        return min(context.cores, usable_cpus())
    # Local ranks know their share of the cores; tasks of Ray and Spark, also beside a local context, have one core.
    return None if source.kind != "spark" and source.shards.engine.name == "local" else 1


def _step(est: Estimator, batch_size: int | None, output_cols: Any, source: Source, threads: int | None) -> Predict:
    names = [output_cols] if isinstance(output_cols, str) else output_cols
    return Predict(
        Job(est.backend, est.spec, est._owner, est._version, est._state, est.seed),
        est.backend.framework.batch_size(est.spec, batch_size),
        threads,
        feature_cols=source.form.feature_cols,
        together=source.form.together,
        output_cols=None if names is None else tuple(names),
    )
