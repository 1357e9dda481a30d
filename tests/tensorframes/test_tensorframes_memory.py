"""A frame that is larger than the memory of a Python worker passes through it block by block."""

from __future__ import annotations

import textwrap

import pytest

from tests.memory import Cage
from tests.programs import run

LIMIT = 500 << 20
SIZE = 2 << 30
WIDTH = 1024
PROGRAM = """
    import tensorflow
    import orca.tensorframes as tfs
    import orca.tf1 as tf
    from orca import init_orca_context

    rows, width = {rows}, {width}
    conf = {{
        "spark.executorEnv.ORCA_TEST_GROUP": {group!r},
        "spark.executorEnv.ORCA_PRELOAD": "tests.tensorframes.limit,pandas,pyarrow,tensorflow",
    }}
    context = init_orca_context(runtime="spark", cores=1, memory="1g", conf=conf)
    # Rows of a shuffle are held as bytes, which cross to Python as they are.
    wide = context.spark.range(rows).selectExpr(f"array_repeat(cast(id % 7 as float), {{width}}) as v").repartition(2)
    with tf.Graph().as_default():
        v = tf.placeholder(tf.float32, [None, width], "v")
        mean = tf.reduce_mean(v, 1, name="mean")
        result = tfs.map_blocks(mean, wide)
    print(result.groupBy().sum("mean").collect()[0][0], sum(row % 7 for row in range(rows)))
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_frame_larger_than_the_memory_of_its_worker_passes_through():
    rows = SIZE // (4 * WIDTH)
    cage = Cage(LIMIT)
    try:
        group = str(cage.path / "cgroup.procs")
        output = run(
            textwrap.dedent(PROGRAM).format(rows=rows, width=WIDTH, group=group), 280, TF_CPP_MIN_LOG_LEVEL="3"
        )
        total, expected = map(float, output.split()[-2:])
        assert total == expected
        peak = cage.peak
        print(f"{SIZE >> 20} MB through a worker that used {peak >> 20} MB")
        assert (50 << 20) < peak <= LIMIT, "the worker was not in the group"
    finally:
        cage.close()
