"""A worker that is killed in the middle of a transform changes nothing: its engine does the work again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from orca import XShards, init_orca_context


def kill_once(shard, mark):
    """Kill this very worker the first time the third shard comes by."""
    time.sleep(0.05)
    if shard["id"][0] == 2:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return {"id": shard["id"], "square": shard["id"] ** 2}


def check(shards, mark):
    found = shards.to_numpy()
    assert Path(mark).exists()
    np.testing.assert_array_equal(found["id"], np.arange(12))
    np.testing.assert_array_equal(found["square"], np.arange(12) ** 2)


@pytest.mark.ray
def test_killed_ray_worker_does_not_change_the_result(ray_cluster, tmp_path):
    init_orca_context(runtime="ray", cores=4)
    mark = str(tmp_path / "killed")
    check(XShards.partition({"id": np.arange(12)}, num_shards=6).transform_shard(kill_once, mark), mark)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_spark_executor_does_not_change_the_result(tmp_path):
    import subprocess
    import sys

    mark = str(tmp_path / "killed")
    code = f"""
import os, signal, time
import numpy as np
import psutil
from orca import XShards, init_orca_context
from tests.shards.test_lost_workers import check

def kill_executor(shard, mark):
    # The whole executor: the Java process above this Python worker, once.
    time.sleep(0.05)
    if shard["id"][0] == 2:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            [java] = [p for p in psutil.Process().parents() if p.name() == "java"][:1]
            java.kill()
            time.sleep(60)
    return {{"id": shard["id"], "square": shard["id"] ** 2}}

init_orca_context(runtime="spark", master="local-cluster[2,1,1024]")
shards = XShards.partition({{"id": np.arange(12)}}, num_shards=6).transform_shard(kill_executor, {mark!r})
check(shards, {mark!r})
print("the same")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the same" in done.stdout
