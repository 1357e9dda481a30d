"""Peak memory of OpenVINO predictions does not depend on the number of rows."""

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
    # Only Python processes count: Java sizes its heap by itself.
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
    rows = shards.transform_shard(lambda s: {{"x": np.full((ROWS, {width}), s["seed"][0], "f4")}})
    total = est.predict(rows).transform_shard(lambda s: {{"rows": np.array([len(s["prediction"])])}})
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
def test_peak_memory_does_not_grow_with_the_rows(tmp_path, runtime, works):
    output = run(PROGRAM.format(path=mean(tmp_path / "mean.xml", WIDTH), runtime=runtime, works=works, width=WIDTH))
    lines = [line.split() for line in output.splitlines() if line.startswith("over_")]
    assert len(lines) == works.count("over_")
    for name, *numbers in lines:
        data, once, more, four_times = map(int, numbers)
        summary = f"{name}: {data >> 20} MB of rows: peak {once >> 20} MB; {more >> 20} MB: {four_times >> 20} MB"
        print(summary)
        assert four_times <= 1.1 * once, summary
        # The bound is meaningful: it is far below the size of the additional rows.
        assert 0.1 * once < 0.2 * (more - data), summary
