"""Threads of OpenVINO: all cores for a single model, a share of them for one of several."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orca import Estimator, XShards, init_orca_context
from orca.context import Context
from orca.core.machine import usable_cpus
from orca.runs import predict
from orca.shards.shard_formats import arrow_column
from tests.backends.openvino_models import dense

x = np.random.default_rng(0).normal(size=(18, 6))


@pytest.fixture
def threads(tmp_path, monkeypatch):
    """A function that predicts and returns the thread limit of the model: None is a local rank's share."""
    steps = []
    step = predict._step
    monkeypatch.setattr(predict, "_step", lambda *arguments: steps.append(step(*arguments)) or steps[-1])

    def limit(data, workers=1, **more):
        Estimator.from_openvino(model_path=dense(tmp_path / "dense.xml"), workers=workers).predict(data, **more)
        return steps[-1].threads

    return limit


def test_only_data_in_this_process_gets_all_cores(local: Context, threads):
    frame = pd.DataFrame({"features": list(x)})
    table = pa.table({"features": arrow_column(x)})
    for data in (x, frame, table):
        assert threads(data) == min(local.cores, usable_cpus())
        assert threads(data, workers=2) is None
    assert threads(XShards.partition({"x": x})) is None
    assert threads(XShards.partition(frame), feature_cols="features") is None


@pytest.mark.ray
def test_a_ray_dataset_gets_one_core_even_in_a_local_context(ray_cluster, threads):
    import ray

    dataset = ray.data.from_arrow(pa.table({"features": arrow_column(x)}))
    for runtime in ("local", "ray"):
        init_orca_context(runtime=runtime, cores=4)
        assert threads(dataset) == 1


@pytest.mark.spark
def test_a_spark_frame_gets_one_core_even_in_a_local_context(spark_session, threads):
    frame = spark_session.createDataFrame(pa.table({"features": arrow_column(x)}))
    for runtime in ("local", "spark"):
        init_orca_context(runtime=runtime, cores=4)
        assert threads(frame) == 1
