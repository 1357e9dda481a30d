"""What layers do with data: predict, predict classes and evaluate, on the active context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.backends.bigdl.actions import register
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.samples import Sample
from orca.backends.bigdl.validation import EvaluatedResult, ValidationMethod
from orca.context import workers_for
from orca.core.arguments import check_count, wrong
from orca.estimator import Estimator
from orca.metrics import Metric, State
from orca.shards.tree import tree_map

BATCH = 256
"""Rows that a layer gets at once, unless a call says otherwise."""


def predict(layer: Layer, features: Any, batch_size: int = -1) -> Any:
    """Return the outputs for rows: arrays for arrays, an RDD for an RDD, otherwise as `Estimator.predict` does."""
    return Estimator.from_bigdl(model=layer).predict(rows(features), batch_size=_batch(batch_size))


def predict_class(layer: Layer, features: Any, batch_size: int = -1) -> Any:
    """Return the class of each row, counted from 1."""
    outputs = predict(layer, features, batch_size)
    if isinstance(outputs, np.ndarray):
        return classes(outputs)
    return outputs.map(classes) if hasattr(outputs, "mapPartitions") else outputs.transform_shard(_shard_classes)


def classes(outputs: Any) -> Any:
    """Return the number of the largest output, from 1, along the last axis."""
    return np.asarray(outputs).argmax(axis=-1) + 1


def _shard_classes(shard: Any) -> Any:
    return {**shard, "prediction": classes(shard["prediction"])}


def evaluate(
    layer: Layer, dataset: Any, batch_size: int = BATCH, val_methods: Sequence[ValidationMethod] | None = None
) -> list[EvaluatedResult]:
    """Return the result of each validation method over all rows.

    Args:
        layer: The model.
        dataset: An RDD of Sample, (features, labels), or anything that `Estimator.evaluate` takes.
        batch_size: Rows that are computed at once over all workers.
        val_methods: The methods.
    """
    methods = as_methods("val_methods", val_methods)
    est = Estimator.from_bigdl(
        model=layer, metrics=[*methods, _Rows()], workers=workers_for(check_count("batch_size", batch_size))
    )
    values = est.evaluate(rows(dataset), batch_size=batch_size)
    count = int(values[_Rows.name])
    return [EvaluatedResult(values[method.name], method.total(count), method.name) for method in methods]


def as_methods(name: str, methods: Any) -> list[ValidationMethod]:
    """Return one validation method, or a list of them, as a list."""
    found = list(methods) if isinstance(methods, list | tuple) else [methods]
    for method in found:
        if not isinstance(method, ValidationMethod):
            raise wrong(name, methods, "validation methods, such as [Top1Accuracy()]")
    return found


class _Rows(Metric):
    """The number of rows."""

    name = "rows_evaluated"

    def update(self, state: State, target: Any, output: Any) -> State:
        first = target[0] if isinstance(target, list | tuple) else target
        state["count"] = state.get("count", 0) + len(first)
        return state

    def compute(self, state: State) -> float:
        return float(state.get("count", 0))


def _batch(batch_size: int) -> int | None:
    """Return the batch size of `predict`; -1 leaves it open."""
    return None if batch_size == -1 else check_count("batch_size", batch_size)


def rows(data: Any) -> Any:
    """Return a list of Sample as arrays; anything else as it is."""
    if isinstance(data, list | tuple) and data and all(isinstance(row, Sample) for row in data):
        return rows_of(data)
    return data


def rows_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return rows as arrays {"x", "y"}."""
    parts = {"x": [_arrays(row.features) for row in samples], "y": [_arrays(row.labels) for row in samples]}
    return {
        name: tree_map(lambda *values: np.stack(values), *part) for name, part in parts.items() if part[0] is not None
    }


def _arrays(tensors: Any) -> Any:
    arrays = [tensor.to_ndarray() for tensor in tensors]
    return (arrays[0] if len(arrays) == 1 else arrays) if arrays else None


def connect() -> None:
    """Let layers use these functions as methods."""
    register("predict", predict)
    register("predict_class", predict_class)
    register("evaluate", evaluate)
