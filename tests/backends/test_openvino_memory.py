"""Memory of predictions by OpenVINO: the same over 1x and 4x the rows."""

from __future__ import annotations

import pytest

from tests.backends.openvino_models import mean
from tests.programs import run

WIDTH = 60
PROGRAM = """
import gc
import numpy as np, psutil
from orca import Estimator, XShards, init_orca_context
from tests.memory import Peak
import tests.memory

class Me(psutil.Process):
    # Java's heap is as large as it likes to be: only processes of Python count.
    def children(self, recursive=False):
        return [p for p in super().children(recursive) if "java" not in p.name()]

tests.memory.psutil.Process = Me
context = init_orca_context(runtime={runtime!r}, cores=2, memory="1g")
est = Estimator.from_openvino(model_path={path!r})
ROWS = 25_000  # of a shard

def over_frame(rows):
    from pyspark.sql import functions as f
    numbers = f.array_repeat((f.col("id") % 7).cast("float"), {width}).alias("features")
    frame = context.spark.range(rows, numPartitions=2).select(numbers)
    est.predict(frame).write.format("noop").mode("overwrite").save()
    return rows

def over_shards(count):
    shards = XShards.from_shards([{{"seed": np.array([n])}} for n in range(count)])
    made = shards.transform_shard(lambda s: {{"x": np.full((ROWS, {width}), s["seed"][0], "f4")}})
    total = est.predict(made).transform_shard(lambda s: {{"rows": np.array([len(s["prediction"])])}})
    assert total.to_numpy()["rows"].sum() == ROWS * count
    return ROWS * count

def peak(work, size):
    gc.collect()
    with Peak(0.05) as watch:
        rows = work(size)
    return rows * {width} * 4, watch.peak

for work, size in {works}:
    work(size)
    print(work.__name__, *peak(work, size), *peak(work, size * 4))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "works"),
    [
        pytest.param("spark", "[(over_frame, 500_000), (over_shards, 20)]", marks=pytest.mark.spark, id="spark"),
        pytest.param("local", "[(over_shards, 20)]", id="local"),
    ],
)
def test_memory_does_not_grow_with_the_rows(tmp_path, runtime, works):
    said = run(PROGRAM.format(path=mean(tmp_path / "mean.xml", WIDTH), runtime=runtime, works=works, width=WIDTH))
    lines = [line.split() for line in said.splitlines() if line.startswith("over_")]
    assert len(lines) == works.count("over_")
    for name, *numbers in lines:
        data, once, more, four_times = map(int, numbers)
        told = f"{name}: {data >> 20} MB of rows: peak {once >> 20} MB; {more >> 20} MB: {four_times >> 20} MB"
        print(told)
        assert four_times <= 1.1 * once, told
        # The bound means something: it is far below what the further rows would take.
        assert 0.1 * once < 0.2 * (more - data), told
