"""Ranks outside the driver's process tree: a Ray cluster of two nodes, a Spark cluster of two executors."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from tests.conformance.models import make_data, train_alone

ROWS, SEED = 101, 7

JOB = """
import json, os, sys
import cloudpickle
import numpy as np
import torch
from torch import nn
from orca import Estimator, XShards
from orca.context import current
from tests.conformance.models import make_data, model_creator, optimizer_creator

ROWS, SEED = 101, 7
WIDE = 20_000

def load(shard):
    # The rows are created where the shard is stored; the driver sent only numbers.
    x, y = make_data(ROWS)
    start, stop = (int(edge) for edge in shard["edge"][0])
    # Much more data than weights, so that rows passing through the driver would be noticed.
    return {"x": {"small": x[start:stop], "wide": np.ones((stop - start, WIDE), "f4")}, "y": y[start:stop]}

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = model_creator({})
    def forward(self, small, wide):
        return self.body(small)

fetched = [0]

def counted(function):
    # Count the bytes that a function returns to this process.
    def call(*args, **more):
        result = function(*args, **more)
        fetched[0] += len(cloudpickle.dumps(result))
        return result
    return call

def watch():
    # Count everything that Ray or Spark return to the driver.
    if current().runtime == "ray":
        import ray
        ray.get = counted(ray.get)
    else:
        from pyspark import RDD
        RDD.collect = counted(RDD.collect)
        RDD.take = counted(RDD.take)

def run():
    fetched[0] = 0
    edges = [0, 40, 40, 75, ROWS]
    shards = XShards.from_shards(
        [{"edge": np.array([[a, b]])} for a, b in zip(edges, edges[1:])]
    ).transform_shard(load)
    est = Estimator.from_torch(
        model=Wide, optimizer=optimizer_creator, loss=nn.CrossEntropyLoss(), config={"lr": 0.1}, workers=2, seed=SEED,
        metrics=["accuracy"],
    )
    gang = current().gang(2, est.backend.traits.preload)
    history = est.fit(shards, epochs=3, batch_size=16)
    scores = est.evaluate(shards)
    received = fetched[0]
    predicted = est.predict(shards.transform_shard(lambda s: {"x": s["x"]}))
    predicted = predicted.transform_shard(lambda s: {"prediction": s["prediction"]}).to_numpy()["prediction"]
    est.shutdown()
    weights = {k.removeprefix("body."): v.tolist() for k, v in est.get_model().state_dict().items()}
    return {
        "weights": weights, "loss": history["loss"], "accuracy": scores["accuracy"], "predicted": predicted.tolist(),
        "through_driver": gang.received_bytes + received, "data": ROWS * WIDE * 4,
    }
"""


def run(code: str, tmp_path: Any, **environment: str) -> dict[str, Any]:
    """Run the job in a separate driver and return the result it wrote."""
    import os

    out = tmp_path / "result.json"
    script = tmp_path / "job.py"
    script.write_text(JOB + textwrap.dedent(code) + f"\njson.dump(result, open({str(out)!r}, 'w'))\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "PYTHONPATH": os.getcwd(), **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(out.read_text()))


def check(result: dict[str, Any]) -> None:
    x, y = make_data(ROWS)
    alone = train_alone(x, y, epochs=3, batch_size=16, seed=SEED)
    for key, value in alone.state_dict().items():
        np.testing.assert_allclose(result["weights"][key], value.numpy(), rtol=1e-5, atol=1e-6)
    predicted = np.array(result["predicted"])
    assert predicted.shape == (ROWS, 2)
    assert result["accuracy"] == pytest.approx((predicted.argmax(1) == y).mean())
    # Only weights, metrics and progress reached the driver, over our channel or the engine's.
    print(f"{result['through_driver']:,} of {result['data']:,} bytes passed through the driver")
    assert result["through_driver"] < 0.01 * result["data"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ray_cluster_trains_the_same_weights_without_data_on_the_driver(tmp_path):
    result = run(
        """
        import ray
        from ray.cluster_utils import Cluster
        from orca import init_orca_context, stop_orca_context
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        init_orca_context(runtime="ray", address=cluster.address)
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        nodes = []
        from orca.launch.ray import RayLauncher
        start = RayLauncher.start
        def start_and_record(self, *args):
            start(self, *args)
            nodes.extend(self._nodes)
        RayLauncher.start = start_and_record
        watch()
        result = run()
        result["nodes"] = nodes
        stop_orca_context()
        cluster.shutdown()
        """,
        tmp_path,
    )
    check(result)
    assert len(set(result["nodes"])) == 2


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_spark_cluster_trains_the_same_weights_without_data_on_the_driver(tmp_path):
    result = run(
        """
        from orca import init_orca_context, stop_orca_context
        init_orca_context(runtime="spark", master="local-cluster[2,1,2048]")
        watch()
        result = {"one host": run()}
        # Each rank acts as a separate host, so every shard is fetched from a peer.
        import orca.launch.spark as spark
        plain = spark._rank_task
        def alone(*args):
            inner = plain(*args)
            def run_apart(records):
                import os
                os.environ["ORCA_HOST_ID"] = f"host-{os.getpid()}"
                yield from inner(records)
            return run_apart
        spark._rank_task = alone
        result["as if two hosts"] = run()
        stop_orca_context()
        """,
        tmp_path,
    )
    for one in result.values():
        check(one)
