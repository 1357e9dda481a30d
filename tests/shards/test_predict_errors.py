"""A model that fails on some rows of a prediction is one TransformError, whatever the data, with no noise beside it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from orca import Estimator, XShards, init_orca_context
from orca.context import Context
from orca.errors import TransformError


class Picky(nn.Module):
    """Refuses numbers above five."""

    def __init__(self, config=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        if (x > 5).any():
            raise ValueError("a number above five")
        return self.weight * x.reshape(len(x), -1)


def estimator():
    return Estimator.from_torch(model=Picky, loss=nn.MSELoss(), optimizer=torch.optim.SGD, config={"lr": 0.1})


def test_rows_that_a_model_refuses_are_a_transform_error(context: Context):
    x = np.arange(12, dtype="f4").reshape(12, 1)
    shards = XShards.partition({"x": x}, num_shards=4)
    with pytest.raises(TransformError, match=r"^shard [123]: ValueError: a number above five$"):
        estimator().predict(shards).collect()
    frames = XShards.from_pandas(pd.DataFrame({"a": x[:, 0]}), 4)
    with pytest.raises(TransformError, match=r"^shard [123]: ValueError: a number above five$"):
        estimator().predict(frames, feature_cols=["a"]).to_pandas()


@pytest.mark.spark
class TestSparkFrames:
    def frame(self, spark_session, rows):
        init_orca_context(runtime="spark")
        return spark_session.createDataFrame([(float(n), float(n % 2)) for n in rows], "a double, label double")

    def test_every_action_raises_orcas_error(self, spark_session):
        found = estimator().predict(self.frame(spark_session, range(12)), feature_cols=["a"])
        assert isinstance(found, type(self.frame(spark_session, [1])))
        for action in (
            lambda: found.collect(),
            lambda: found.toPandas(),
            lambda: found.select("prediction").toArrow(),
            lambda: found.filter("prediction[0] > 0").show(),
            lambda: found.orderBy("prediction").first(),
        ):
            with pytest.raises(TransformError, match=r"^shard \d+: ValueError: a number above five$"):
                action()
        assert found.filter("a < 3").count() == 3  # the model is not needed for that

    def test_a_model_that_refuses_the_first_row_fails_in_predict(self, spark_session):
        with pytest.raises(TransformError, match=r"^shard 0: ValueError: a number above five$"):
            estimator().predict(self.frame(spark_session, [9, 1]), feature_cols=["a"])

    def test_predictions_are_frames_like_others(self, spark_session):
        frame = self.frame(spark_session, range(5))
        found = estimator().predict(frame, feature_cols=["a"])
        both = found.join(frame.withColumnRenamed("label", "again"), "a").orderBy("a")
        assert [row.prediction for row in both.collect()] == [[0.0], [1.0], [2.0], [3.0], [4.0]]
        assert found.prediction is not None
        assert found.groupBy("label").count().count() == 2
        with pytest.raises(AttributeError):
            found.predicton  # noqa: B018
        est = estimator()
        est.fit(found, feature_cols=["a"], label_cols="label", batch_size=5)
        assert est.predict(found, feature_cols=["a"], output_cols="second").columns[-1] == "second"


@pytest.mark.ray
@pytest.mark.timeout(170)
def test_ray_prints_nothing_about_errors_that_were_raised():
    program = """
        import gc, sys, time
        import numpy as np
        from orca import XShards, init_orca_context, stop_orca_context
        from orca.errors import TransformError, WorkerError
        from tests.shards.test_predict_errors import estimator

        def refuse(part):
            raise ValueError("refused")

        def refuse_some(part):
            return refuse(part) if part["x"][0] > 3 else part

        def seen(error, work):
            try:
                work()
            except error:
                print("seen", flush=True)

        init_orca_context(runtime="ray", cores=2, address="local")
        x = np.arange(12, dtype="f4").reshape(12, 1)
        shards = XShards.partition({"x": x, "y": x}, num_shards=4)
        seen(TransformError, lambda: shards.transform_shard(refuse).collect())
        seen(TransformError, lambda: len(shards.transform_shard(refuse)))
        seen(TransformError, lambda: shards.transform_shard(refuse).cache().repartition(3).transform_shard(len).first())
        seen(TransformError, lambda: shards.zip(shards.transform_shard(refuse)).collect())
        seen(TransformError, lambda: estimator().predict(shards).collect())
        seen(WorkerError, lambda: estimator().fit(shards, batch_size=4))
        seen(TransformError, lambda: estimator().fit(shards.transform_shard(refuse), batch_size=4))
        seen(TransformError, lambda: estimator().fit(shards.transform_shard(refuse_some), batch_size=4))
        gc.collect()
        time.sleep(8)  # Ray waits some seconds before it prints an error that nobody has read
        stop_orca_context()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=160)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["seen"] * 8
    assert "Unhandled error" not in done.stderr
