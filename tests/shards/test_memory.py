"""Memory of all processes on each data path, and data larger than memory."""

from __future__ import annotations

import textwrap

import pytest

from tests.memory import Cage
from tests.programs import run

PROLOGUE = """
import gc, os, sys, time
import numpy as np
import torch
from torch import nn
from orca import Estimator, XShards, init_orca_context
from tests.memory import Peak, family_pss

class Narrow(nn.Module):
    # Reads whole rows and has few weights, so that the memory used is that of the data.
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 2)
    def forward(self, x):
        return self.last(x.mean(dim=1, keepdim=True))

def estimator():
    return Estimator.from_torch(model=Narrow, optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(),
                                config={"lr": 0.01}, workers=2, seed=0)
"""


def run_with(code: str, **environment: str) -> str:
    return run(PROLOGUE + textwrap.dedent(code), **environment)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_numpy_to_batches_of_two_ranks_holds_the_data_once():
    output = run_with("""
        init_orca_context(cores=2)
        est = estimator()
        est.fit(np.zeros((8, 1024), "f4"), np.zeros(8, "i8"), batch_size=8)
        base = family_pss()
        rows = 131072
        with Peak() as watch:
            x = np.random.default_rng(0).random((rows, 1024), dtype="f4")
            y = np.zeros(rows, "i8")
            size = x.nbytes
            shards = XShards.partition({"x": x, "y": y})
            del x
            est.fit(shards, epochs=2, batch_size=1024)
        print((watch.peak - base) / size)
    """)
    ratio = float(output.split()[-1])
    print(f"numpy -> XShards -> two ranks: {ratio:.2f} x the data")
    assert ratio <= 1.3


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_spark_frame_to_batches_of_two_ranks_stays_below_two_and_a_half(tmp_path):
    output = run_with(
        f"""
        import pyarrow as pa, pyarrow.parquet as pq
        rows, width = 262144, 1024
        folder = {str(tmp_path)!r}
        for part in range(8):
            block = np.random.default_rng(part).random((rows // 8, width), dtype="f4")
            lists = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), width).cast(pa.list_(pa.float32()))
            table = pa.table({{"features": lists, "label": np.zeros(rows // 8, "i8")}})
            pq.write_table(table, f"{{folder}}/{{part}}.parquet", compression="none", row_group_size=2048)
        del block, lists, table
        gc.collect()
        context = init_orca_context(runtime="spark", cores=2, memory="1g",
                                    conf={{"spark.sql.execution.arrow.maxRecordsPerBatch": "2000"}})
        frame = context.spark.read.parquet(folder)
        est = estimator()
        est.fit(frame.limit(8), batch_size=8)
        base = family_pss()
        with Peak() as watch:
            history = est.fit(frame, epochs=2, batch_size=1024)
        assert history[0]["rows"] == rows
        print((watch.peak - base) / (rows * width * 4))
        """
    )
    ratio = float(output.split()[-1])
    print(f"Spark DataFrame -> two ranks: {ratio:.2f} x the data")
    assert ratio <= 2.5


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_data_twice_as_large_as_the_memory_limit_trains_within_it(tmp_path):
    limit = 640 << 20
    rows, width = 5120, 65536
    cage = Cage(limit)
    try:
        output = run_with(
            f"""
            open({str(cage.path / "cgroup.procs")!r}, "w").write(str(os.getpid()))
            x = np.lib.format.open_memmap({str(tmp_path / "x.npy")!r}, "w+", "f4", ({rows}, {width}))
            for start in range(0, {rows}, 128):
                x[start : start + 128] = np.arange(start, start + 128, dtype="f4")[:, None] / {rows}
                x.flush()
            y = (np.arange({rows}) * 2 >= {rows}).astype("i8")
            assert x.nbytes >= 2 * {limit}, x.nbytes
            init_orca_context(cores=2)
            shards = XShards.partition({{"x": x, "y": y}})
            del x
            os.unlink({str(tmp_path / "x.npy")!r})
            history = estimator().fit(shards, epochs=2, batch_size=64)
            print(history[-1]["rows"], *history["loss"])
            """,
            TMPDIR=str(tmp_path),
        )
        assert int(output.split()[0]) == rows
        first, second = map(float, output.split()[1:])
        assert second < first
        assert cage.peak <= limit
    finally:
        cage.close()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_without_enough_memory_says_so_instead_of_hanging():
    output = run_with("""
        from orca.errors import ResourceError
        init_orca_context(runtime="spark", cores=2, memory="512m")
        try:
            XShards.partition({"x": np.zeros((1200, 1 << 17), "f4")}, 4).to_numpy()
        except ResourceError as error:
            print(error)
    """)
    assert "lack of memory" in output
    assert 'memory="8g"' in output
