"""A worker killed during a transform or a prediction does not change the result: the engine repeats its work."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, XShards, init_orca_context
from tests.programs import kill_me_once, run


def squares(shard, kill, mark):
    """Kill something at the third shard."""
    time.sleep(0.05)
    if shard["id"][0] == 2:
        kill(mark)
    return {"id": shard["id"], "square": shard["id"] ** 2}


def check(shards, mark):
    result = shards.to_numpy()
    assert Path(mark).exists()
    np.testing.assert_array_equal(result["id"], np.arange(12))
    np.testing.assert_array_equal(result["square"], np.arange(12) ** 2)


class Doubling(nn.Module):
    """Doubles its input; kills its process once, at row 7."""

    def __init__(self, config):
        super().__init__()
        self.mark = config["mark"]

    def forward(self, x):
        if (x == 7).any():
            kill_me_once(self.mark)
        return 2 * x


@pytest.mark.ray
def test_killed_ray_worker_does_not_change_the_result(ray_cluster, tmp_path):
    init_orca_context(runtime="ray", cores=4)
    mark = str(tmp_path / "killed")
    check(XShards.partition({"id": np.arange(12)}, num_shards=6).transform_shard(squares, kill_me_once, mark), mark)


@pytest.mark.ray
@pytest.mark.parametrize("kind", ["dataset", "shards"])
def test_killed_ray_worker_loses_and_repeats_no_row_of_a_prediction(ray_cluster, tmp_path, kind):
    import ray

    init_orca_context(runtime="ray", cores=4)
    mark = str(tmp_path / "killed")
    est = Estimator.from_torch(model=Doubling, config={"mark": mark}, loss=nn.MSELoss(), optimizer=torch.optim.SGD)
    rows = np.arange(12, dtype="f4").reshape(12, 1)
    if kind == "dataset":
        result = est.predict(ray.data.from_numpy(np.array_split(rows, 5)), feature_cols="data", batch_size=2)
        ids, doubled = (np.stack(result.to_pandas()[name]).ravel() for name in ("data", "prediction"))
    else:
        result = est.predict(XShards.partition({"x": rows}, num_shards=5), batch_size=2).to_numpy()
        ids, doubled = result["x"].ravel(), result["prediction"].ravel()
    assert Path(mark).exists()
    np.testing.assert_array_equal(ids, np.arange(12))
    np.testing.assert_array_equal(doubled, 2 * np.arange(12))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_spark_executor_changes_neither_a_transform_nor_a_prediction(tmp_path):
    output = run(f"""
        import os
        import numpy as np
        from orca import Estimator, XShards, init_orca_context
        from tests.backends.openvino_models import dense, dense_result
        from tests.programs import kill_executor_once
        from tests.shards.test_lost_workers import check, squares

        context = init_orca_context(runtime="spark", master="local-cluster[2,1,1024]")
        first, second = {str(tmp_path / "first")!r}, {str(tmp_path / "second")!r}
        shards = XShards.partition({{"id": np.arange(12)}}, num_shards=6)
        check(shards.transform_shard(squares, kill_executor_once, first), first)

        x = np.random.default_rng(0).random((360, 6), dtype="f4")
        rows = [(n, row.tolist()) for n, row in enumerate(x)]
        frame = context.spark.createDataFrame(rows, "id: int, features: array<float>").repartitionByRange(6, "id")
        est = Estimator.from_openvino(model_path=dense({str(tmp_path / "net.xml")!r}))
        predicted = est.predict(frame, batch_size=4)

        def killer(batches):
            # After the first predictions of the third partition.
            for batch in batches:
                if batch.column("id")[0].as_py() >= 120:
                    kill_executor_once(second)
                yield batch

        result = predicted.mapInArrow(killer, predicted.schema).toPandas().sort_values("id")
        assert os.path.exists(second)
        assert result["id"].tolist() == list(range(360))
        np.testing.assert_allclose(np.stack(result["prediction"]), dense_result(x), atol=1e-5)
        print("the same")
    """)
    assert "the same" in output
