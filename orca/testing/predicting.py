"""Checks of predict: rows come back in their order, in their own form and by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.testing.cases import NAMES, SEED, BackendCase, cut, frame_of, to_pandas
from orca.testing.comparing import near
from orca.testing.report import Check

if TYPE_CHECKING:
    from orca.context import Context
    from orca.estimator import Estimator


@functools.lru_cache(maxsize=4)
def _ready(case: BackendCase) -> Estimator:
    """An estimator that can predict, on two workers."""
    est = case.make(2) if case.inference_only else case.make(2, seed=SEED)
    if case.trains:
        est.fit(*case.data(20), batch_size=10)
    return est


def _same(actual: Any, expected: Any, what: str) -> None:
    near(actual, expected, what, rtol=1e-4, atol=1e-5)


def predict_arrays(case: BackendCase, context: Context) -> None:
    """Arrays give one output per row, in order, also for a single row and for none."""
    est, (x, _) = _ready(case), case.data(61)
    expected = case.compute(est, x)
    _same(est.predict(x), expected, "predictions of an array")
    _same(est.predict(x, batch_size=9), expected, "predictions of an array in batches of 9")
    _same(est.predict(x[:1]), expected[:1], "prediction of one row")
    assert len(est.predict(x[:0])) == 0, "predictions of no rows"


def predict_shards(case: BackendCase, context: Context) -> None:
    """Shards keep their number, sizes and entries, and get a prediction beside each row."""
    est, (x, y) = _ready(case), case.data(61)
    expected, sizes = case.compute(est, x), [3, 0, 40, 18]
    shards = est.predict(cut(x, y, sizes), batch_size=9).collect()
    assert [len(shard["prediction"]) for shard in shards] == sizes, "predictions per shard"
    _same(np.concatenate([shard["prediction"] for shard in shards]), expected, "predictions of shards")
    np.testing.assert_array_equal(np.concatenate([shard["y"] for shard in shards]), y, "labels beside predictions")
    named = est.predict(cut(x, y, sizes), output_cols=["score"]).first()
    assert set(named) == {"x", "y", "score"}, f"entries {sorted(named)}, expected x, y and score"


def predict_frames(case: BackendCase, context: Context) -> None:
    """pandas frames keep index and columns, frames of the runtime their rows; the prediction is a column."""
    est, (x, y) = _ready(case), case.data(61)
    expected = case.compute(est, x)
    for what, frame in {"pandas": to_pandas(frame_of(context, x, y)), context.runtime: frame_of(context, x, y)}.items():
        columns = list(frame.columns() if callable(frame.columns) else frame.columns)
        predicted = est.predict(frame, feature_cols=NAMES, batch_size=16)
        assert isinstance(predicted, type(frame)), f"a {type(frame).__name__} gave a {type(predicted).__name__}"
        predicted = to_pandas(predicted)
        assert list(predicted.columns) == [*columns, "prediction"], f"columns {list(predicted.columns)}"
        np.testing.assert_array_equal(predicted["id"], np.arange(61), f"rows of a {what} frame")
        np.testing.assert_array_equal(predicted[NAMES].to_numpy(), x, f"features in a {what} frame")
        values = np.stack(list(predicted["prediction"])).reshape(expected.shape)
        _same(values, expected, f"predictions of a {what} frame")


def several_inputs_and_outputs(case: BackendCase, context: Context) -> None:
    """Several inputs go in by name; several outputs come out with names and their own shapes, row by row."""
    assert case.several is not None
    est, rng = case.several(2), np.random.default_rng(0)
    features = {"left": rng.normal(size=(30, 2)).astype("f4"), "right": rng.normal(size=(30, 4)).astype("f4")}
    if case.trains:
        history = est.fit({"x": features, "y": features["left"].sum(axis=1)}, epochs=2, batch_size=10)
        assert history["rows"] == [30, 30], f"trained on {history['rows']} rows of 30"
    outputs = est.predict(features)
    parts = outputs if isinstance(outputs, dict) else dict(enumerate(outputs))
    assert len(parts) > 1, f"{len(parts)} outputs"
    assert all(len(value) == 30 for value in parts.values()), "each output has one entry per row"
    halves = [
        est.predict({name: value[rows] for name, value in features.items()}) for rows in (slice(17), slice(17, 30))
    ]
    for key, value in parts.items():
        _same(np.concatenate([half[key] for half in halves]), value, f"output {key} of both parts of the rows")
    from orca.shards.xshards import XShards

    shard = est.predict(XShards.partition({"x": features}, num_shards=3)).first()
    names = {str(key) if isinstance(key, str) else f"prediction_{key}" for key in parts}
    assert set(shard) == {"x", *names}, f"entries {sorted(shard)}, expected x and {sorted(names)}"


CHECKS = [
    Check("predict_arrays", predict_arrays),
    Check("predict_shards", predict_shards, remote=True),
    Check("predict_frames", predict_frames, remote=True),
    Check("several_inputs_and_outputs", several_inputs_and_outputs, ("several",)),
]
