"""MXNet on a runtime's own DataFrames, with files and checkpoints, equals training in one process."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orca.context import Context
from orca.errors import MissingPackageError
from tests.conformance.models import make_data
from tests.conformance.test_mxnet import estimator, same_weights, train_alone

mx = pytest.importorskip("mxnet")

NAMES = [f"c{number}" for number in range(6)]


def runtime_frame(runtime, table):
    """Return the rows as the runtime's own kind of DataFrame."""
    if runtime == "spark":
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate().createDataFrame(table)
    if runtime == "ray":
        import ray

        return ray.data.from_arrow([table.slice(0, 30), table.slice(30, 1), table.slice(31)])
    return table.to_pandas()


def test_mxnet_trains_resumes_and_predicts_with_dataframes_of_the_runtime(context: Context, tmp_path):
    x, y = make_data(70)
    table = pa.table({name: x[:, number] for number, name in enumerate(NAMES)} | {"label": y})
    frame = runtime_frame(context.runtime, table)
    columns = {"feature_cols": NAMES, "label_cols": ["label"]}
    first = estimator(2, model_dir=str(tmp_path / "run"))
    history = first.fit(frame, epochs=2, batch_size=16, checkpoint_trigger=3, max_steps=7, **columns)
    assert history["rows"] == [70, 32]
    second = estimator(2, model_dir=str(tmp_path / "run"))
    assert second.fit(frame, epochs=2, batch_size=16, resume=True, **columns)["epoch"] == [2]
    alone = train_alone(x, y, 2, 16)
    same_weights(second, alone)
    third = estimator(2).load(second.save(str(tmp_path / "saved")))
    assert third.epoch == 2
    predicted = third.predict(frame, feature_cols=NAMES)
    if not isinstance(predicted, pd.DataFrame):
        predicted = predicted.toPandas() if context.runtime == "spark" else predicted.to_pandas()
    expected = alone(mx.nd.array(predicted[NAMES].to_numpy("f4"))).asnumpy()
    np.testing.assert_allclose(np.stack(predicted["prediction"]), expected, rtol=1e-4, atol=1e-5)
    assert sorted(predicted["c0"]) == sorted(x[:, 0])


@pytest.mark.horovod
def test_mxnet_over_horovod_evaluates_saves_and_resumes(local: Context, tmp_path):
    x, y = make_data(70)
    more = {"backend": "horovod", "num_servers": None}
    first = estimator(2, model_dir=str(tmp_path / "run"), **more)
    first.fit(x, y, epochs=2, batch_size=16, checkpoint_trigger=3, max_steps=7)
    second = estimator(2, model_dir=str(tmp_path / "run"), **more)
    assert second.fit(x, y, epochs=2, batch_size=16, resume=True)["epoch"] == [2]
    alone = train_alone(x, y, 2, 16)
    same_weights(second, alone)
    output = alone(mx.nd.array(x)).asnumpy()
    np.testing.assert_allclose(second.predict(x), output, rtol=1e-4, atol=1e-5)
    scores = second.evaluate(x, y, batch_size=7)
    assert scores["accuracy"] == pytest.approx((output.argmax(1) == y).mean())
    third = estimator(2, **more).load(second.save(str(tmp_path / "saved")))
    assert third.evaluate(x, y) == pytest.approx(scores)


def test_a_missing_horovod_is_reported_before_the_launch(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="needs a Horovod that was built with MXNet"):
        estimator(2, backend="horovod", num_servers=None)
