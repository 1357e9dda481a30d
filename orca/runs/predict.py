"""The driver's side of `predict`: the model goes to where the rows are, and predictions return in the data's kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orca.backends.registry import find
from orca.backends.worker.inference import Predict
from orca.backends.worker.job import Job
from orca.core.arguments import check_mapping
from orca.core.machine import usable_cpus
from orca.core.pickling import check_picklable
from orca.errors import ArgumentError, ColumnError, DataError, listed, suggest
from orca.runs.rows import form_of
from orca.runs.states import blank, model_of
from orca.runs.values import Learned, PredictRequest, RowsRequest, Setup
from orca.runtimes.context import Context
from orca.shards.adapters.base import Adapter, Form, Place, Prediction
from orca.shards.adapters.checking import refuse
from orca.shards.adapters.registry import adapt, check_names
from orca.shards.adapters.selection import check_columns
from orca.shards.columns import Columns, assemble, flat
from orca.shards.tree import Tree, describe, row_count, take_rows

SAMPLE = 32
"""Rows on which a converted model is compared with the original."""


class PredictionCache:
    """What an estimator derives from its state for predictions, kept until the state changes."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[object, Any]] = {}

    def get(self, name: str, key: object) -> Any:
        """Return the entry if it was stored under the same key, else None."""
        stored_key, value = self._entries.get(name, (None, None))
        return value if stored_key == key else None

    def put(self, name: str, key: object, value: Any) -> None:
        """Store an entry in place of the one with another key."""
        self._entries[name] = key, value

    def __getstate__(self) -> dict[str, Any]:
        return {"_entries": {}}


@dataclass(frozen=True)
class _Rows:
    """The data of a call with the way to read it."""

    adapter: Adapter
    form: Form
    place: Place
    by_name: bool = True
    """Whether the model's process picks the columns; else the rows reach it as arrays."""

    def head(self, count: int) -> Tree:
        return self.adapter.head(count, self.form, self.place)


def predict(setup: Setup, learned: Learned, request: PredictRequest, context: Context, cache: PredictionCache) -> Any:
    """Return the model's outputs for the data, in the kind of the data."""
    accelerator = request.accelerator
    inference_only = setup.backend.framework.inference_only
    knows_inputs = inference_only or accelerator is not None
    rows = _rows(setup, request, context, knows_inputs)
    sample = rows.head(SAMPLE if accelerator is not None else 1) if knows_inputs else None
    if sample is not None and not row_count(sample):
        sample = None
    if accelerator is not None and not inference_only:
        if sample is None:
            raise DataError(f"accelerator={accelerator!r} has to see a row of the data, which has none.")
        setup, learned = converted(setup, learned, sample, cache)
    context.prefer(setup.preload)
    if sample is not None:
        # All rows where they cost nothing: a missing axis of rows cannot be seen in one row.
        features = rows.adapter.all_features(rows.form, rows.place)
        setup.backend.framework.check_features(setup.spec, sample if features is None else features)
    check_picklable(**setup.spec.travels())
    step = _step(setup, learned, request, rows)
    example = lambda: _example(setup, learned, step, sample, cache)  # noqa: E731
    return rows.adapter.predict(Prediction(step, rows.form, rows.place, example))


def sample_of(setup: Setup, data: Any, feature_cols: Columns, count: int, context: Context) -> Tree:
    """Return the features of the first rows of anything that `predict` takes, given as ``calibration_data=``."""
    try:
        return _rows(setup, PredictRequest(data, feature_cols=feature_cols), context, True).head(count)
    except (ArgumentError, DataError) as error:
        raise type(error)(f"calibration_data=: {error}") from error


def converted(
    setup: Setup,
    learned: Learned,
    sample: Tree,
    cache: PredictionCache,
    config: Mapping[str, Any] | None = None,
) -> tuple[Setup, Learned]:
    """Return the model converted to OpenVINO and compared on these rows; converted once for every state."""
    key = learned.owner, learned.version, describe(sample), config
    entry: tuple[Setup, Learned] | None = cache.get("converted", key)
    if entry is None:
        backend = find("openvino", "openvino")
        from orca.backends.openvino.accelerating import accelerate

        output = Predict(_job(setup, learned), 1, 0).fresh().predict_step(sample)
        spec = accelerate(setup.backend.framework, model_of(setup, learned), sample, output, config)
        entry = Setup.create(backend, spec, workers=setup.workers), Learned(learned.seed)
        cache.put("converted", key, entry)
    return entry


def _rows(setup: Setup, request: PredictRequest, context: Context, may_stay: bool) -> _Rows:
    """Find out what the data is, which of its columns to read and where to compute."""
    framework, data = setup.backend.framework, request.data
    # A single model with threads of its own needs no other process, if nothing else runs meanwhile.
    in_process = may_stay and setup.workers == 1 and not context.cluster.many_hosts
    # Few, large tasks: one per worker, as each loads the model once.
    threads = setup.resources.cpus or min(context.cores, usable_cpus())
    place = Place(context.engine, setup.workers, in_process, threads)
    batch_size = framework.batch_size(setup.spec, request.batch_size)
    inputs = framework.inputs(setup.spec)
    feature_cols = request.feature_cols
    if isinstance(data, dict) and feature_cols is not None:
        chosen = _columns(list(inputs.names), None, feature_cols)
        form = form_of(setup, RowsRequest(data, feature_cols=chosen), batch_size, need_labels=False)
        check_columns(form, [str(key) for key in data])
        data, feature_cols = {"x": assemble(data, chosen, "feature_cols", form.together)}, None
    elif isinstance(data, dict) and len(inputs.names) > 1 and set(inputs.names) <= set(data):
        data = {"x": data}  # also if one of the inputs is called "x"
    adapter = adapt(data)
    check_names(adapter, "data", feature_cols=feature_cols, output_cols=request.output_cols)
    columns = adapter.columns()
    if columns is None and (feature_cols is None or not adapter.named_entries):
        several = (inputs.count or 1) > 1 and not framework.triples
        form = form_of(setup, RowsRequest(data, feature_cols=feature_cols), batch_size, need_labels=False)
        form = replace(form, pairs=adapter.pairs_are_labelled(several), inputs=inputs.count)
        if may_stay:  # `predict` itself shows these models the first rows
            form = replace(form, checks=replace(form.checks, rows=None))
        return _Rows(adapter, form, place, by_name=False)
    chosen = _columns(list(inputs.names), columns, feature_cols)
    form = form_of(setup, RowsRequest(data, feature_cols=chosen), batch_size, need_labels=False)
    if columns is not None:
        check_columns(form, columns)
        refuse(adapter.problems(flat(chosen)), form)
    if adapter.holds_rows and not may_stay:
        first = adapter.head(1, form, place)
        if row_count(first):
            framework.check_features(setup.spec, first)
    return _Rows(adapter, form, place)


def _columns(names: list[str], columns: list[str] | None, chosen: Columns) -> Columns:
    """Return the columns to read: as chosen, or those named like the model's inputs, in its order, or "features"."""
    if chosen is not None:
        by_name = isinstance(chosen, list | tuple) and len(chosen) > 1 and set(names) == set(flat(chosen))
        return names if by_name else chosen
    if names and columns is not None and set(names) <= set(columns):
        return names
    if columns is not None and "features" not in columns:
        wanted = f"the model's inputs ({', '.join(names)}) or " if names else ""
        raise ColumnError(
            f"data= has named columns: choose some with feature_cols=. Without it {wanted}the column 'features' is "
            f"used, which does not exist. Columns: {listed(columns)}." + suggest("features", columns)
        )
    return ["features"]


def _check_names(setup: Setup, request: PredictRequest, rows: _Rows) -> tuple[str, ...] | None:
    """Return the names for the outputs, if some were given and no feature has one of them."""
    names = request.output_cols
    if names is None:
        return None
    names = (names,) if isinstance(names, str) else tuple(names)
    count = setup.backend.framework.output_count(setup.spec)
    if count is not None and count != len(names):
        raise ArgumentError(
            f"output_cols={list(names)}: the model has {count} output{'s' if count > 1 else ''}, so that as many names "
            "are needed."
        )
    taken = [name for name in names if name in flat(rows.form.feature_cols)]
    if taken:
        raise ArgumentError(
            f"output_cols={list(names)}: {taken[0]!r} is one of the features, which the output would replace. Choose "
            "another name."
        )
    return names


def _job(setup: Setup, learned: Learned) -> Job:
    return Job(setup.backend, setup.spec, learned.owner, learned.version, learned.state, learned.seed)


def _step(setup: Setup, learned: Learned, request: PredictRequest, rows: _Rows) -> Predict:
    return Predict(
        _job(setup, learned),
        setup.backend.framework.batch_size(setup.spec, request.batch_size),
        rows.adapter.threads(rows.place),
        feature_cols=rows.form.feature_cols if rows.by_name else None,
        together=rows.form.together,
        output_cols=_check_names(setup, request, rows),
    )


def _example(setup: Setup, learned: Learned, step: Predict, sample: Tree | None, cache: PredictionCache) -> Any:
    """Return an example of the outputs, from rows like those of the last fit; computed once for every state."""
    if setup.backend.framework.inference_only:
        return step.like(sample)
    if learned.example is None:
        return None
    key = learned.owner, learned.version, step.output_cols
    example = cache.get("example", key)
    if example is None:
        example = step.like(blank(learned.example))
        cache.put("example", key, example)
    return example


def quantized(
    setup: Setup,
    learned: Learned,
    sample: Tree,
    preset: str,
    config: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    cache: PredictionCache,
) -> Setup:
    """Return an OpenVINO setup of the model in int8, calibrated on these rows."""
    from orca.backends.openvino.quantizing import quantize

    if config is not None:
        check_mapping("config", config)
    if not setup.backend.framework.inference_only:
        setup, learned = converted(setup, learned, take_rows(sample, 0, SAMPLE), cache, config)
    spec: Any = setup.spec
    if config is not None:
        spec = replace(spec, config={**spec.config, **config})
    return Setup.create(setup.backend, quantize(spec, sample, preset, dict(options)), workers=setup.workers)
