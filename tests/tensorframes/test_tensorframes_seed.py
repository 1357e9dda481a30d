"""The snippet of the seed document, with nothing but its import lines and the rows of its DataFrame filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import orca.tensorframes as tfs
import orca.tf1 as tf
from tests.tensorframes.spark_jobs import counted

SNIPPET = Path(__file__).resolve().parents[1] / "data" / "seed_002.txt"

pytestmark = pytest.mark.spark


def test_the_seed_runs_as_it_is_written(spark_session: Any):
    names: dict[str, Any] = {"sqlContext": spark_session}
    with tf.Graph().as_default():
        exec(compile(SNIPPET.read_text(), str(SNIPPET), "exec"), names)
    assert names["output_value"] == 15
    assert names["output_df"].columns == ["z", "x", "y"]
    assert [tuple(row) for row in names["output_df"].collect()] == [(13, 1, 4), (17, 2, 5), (21, 3, 6)]


def test_no_job_runs_before_an_action_and_the_graph_is_that_of_the_call(spark_session: Any):
    frame = spark_session.createDataFrame([(1, 4), (2, 5)], ["x", "y"])
    with tf.Graph().as_default() as graph, counted(spark_session) as jobs:
        x = tf.placeholder(tf.int32, name="x")
        y = tf.placeholder(tf.int32, name="y")
        factor = tf.get_variable("factor", initializer=tf.constant(3))
        output = tf.add(x, y * factor, name="z")
        rows = tfs.map_rows(output, frame)
        blocks = tfs.map_blocks(output, frame).filter("x > 1")
        trimmed = tfs.map_blocks(tf.reduce_sum(x, name="s"), frame, trim=True)
        assert jobs() == 0
        with tf.Session() as session:
            session.run(factor.initializer)
            session.run(tf.assign(factor, 100))
        tf.identity(output * 0, name="later")
        assert len(graph.get_operations()) > 0
    assert [row.z for row in rows.collect()] == [13, 17]
    assert [row.z for row in blocks.collect()] == [17]
    assert sum(row.s for row in trimmed.collect()) == 3
    with counted(spark_session) as jobs:
        rows.collect()
        assert jobs() >= 1
