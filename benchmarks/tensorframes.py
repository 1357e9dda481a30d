"""TensorFrames compared with Spark's own functions on Arrow data, on a cached Spark DataFrame.

1  map_blocks, x + 3 on a double, against a pandas_udf in numpy                      at least 1.0
2  map_blocks, softmax(W x) on 64 floats, against a pandas_udf in numpy              at least 1.2
3  map_blocks, softmax(W x) on 64 floats, against predict_batch_udf, tf.function     at least 1.2
4  map_rows, vectorized, x + 3 on a double, against map_blocks                       at least 0.9
5  map_rows, vectorized, softmax(W x) on 64 floats, against map_blocks               at least 0.9
6  map_rows, vectorized, against one run per row, in this process                    at least 100
7  map_rows, as a loop in the graph, against one run per row, in this process        at least 10
8  reduce_blocks, sum of 64 floats, against a grouped pandas_udf                     at least 0.9
9  aggregate, sum of a double for 1,000 keys, against a grouped pandas_udf           at least 0.9
10 the first row of a second job, after another program has run                      at most 1 s

Runs are interleaved, with every other round in reverse order; a result is the median over the rounds, and the ratio
the median of the ratios within a round. Each side runs once before it is measured. The peers get what they are best
with: numpy on whole batches, and for the sum a group per partition, so that all cores work.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from typing import Any

import numpy as np
from comparing import Comparison, Numbers, Side, chosen, facts, take_turns

SECTIONS = tuple(str(number) for number in range(1, 11))
FEATURES, CLASSES, KEYS = 64, 10, 1000
ROWS = {"scalar": 2_000_000, "vector": 400_000, "keys": 400_000}
TURNS = 7
WEIGHTS = np.random.default_rng(1).normal(size=(FEATURES, CLASSES)).astype("f4")


def timed(frame: Any, rows: int) -> float:
    """Return the rows per second that a frame takes to compute."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - began)


def per_second(work: Any, rows: int) -> float:
    """Return the rows per second of a function."""
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def scalars(spark: Any, rows: int) -> Any:
    """Return a cached frame of a double."""
    frame = spark.range(rows, numPartitions=2).selectExpr("cast(id as double) as x").cache()
    frame.count()
    return frame


def vectors(spark: Any, rows: int) -> Any:
    """Return a cached frame of arrays of 64 floats."""
    import pyarrow as pa

    values = np.random.default_rng(0).random((rows, FEATURES), dtype="f4")
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), FEATURES).cast(pa.list_(pa.float32()))
    frame = spark.createDataFrame(pa.table({"v": column})).repartition(2).cache()
    frame.count()
    return frame


def keyed(spark: Any, rows: int) -> Any:
    """Return a cached frame of a key and a double."""
    frame = spark.range(rows, numPartitions=2).selectExpr(f"id % {KEYS} as key", "cast(id as double) as x").cache()
    frame.count()
    return frame


def add_three(rows: bool) -> Any:
    """Return x + 3 as a tensor."""
    import orca.tf1 as tf

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [] if rows else [None], "x")
        return tf.add(x, 3.0, name="z")


def softmax(rows: bool) -> Any:
    """Return softmax(W x) as a tensor."""
    import orca.tf1 as tf

    with tf.Graph().as_default():
        v = tf.placeholder(tf.float32, [FEATURES] if rows else [None, FEATURES], "v")
        product = tf.linalg.matvec(tf.constant(WEIGHTS), v, transpose_a=True) if rows else tf.matmul(v, WEIGHTS)
        return tf.nn.softmax(product, name="z")


def loop(rows: bool = True) -> Any:
    """Return a graph with a condition, which cannot be vectorized."""
    import orca.tf1 as tf

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [], "x")
        return tf.identity(tf.cond(x > 1.0, lambda: x + 3.0, lambda: x * 2.0), name="z")


def numpy_softmax(batch: Any) -> Any:
    """Return the same in numpy."""
    product = batch @ WEIGHTS
    powers = np.exp(product - product.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def pandas_add() -> Any:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def add(x: pd.Series) -> pd.Series:
        return x + 3.0

    add.__annotations__ = {"x": pd.Series, "return": pd.Series}
    return pandas_udf(add, "double")


def pandas_softmax() -> Any:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def apply(v: pd.Series) -> pd.Series:
        return pd.Series(list(numpy_softmax(np.stack(v.to_numpy()))))

    apply.__annotations__ = {"v": pd.Series, "return": pd.Series}
    return pandas_udf(apply, "array<float>")


def _predict_function() -> Any:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    weights = tf.constant(WEIGHTS)

    @tf.function(reduce_retracing=True)
    def compute(v: Any) -> Any:
        return tf.nn.softmax(v @ weights)

    return lambda batch: compute(tf.constant(batch)).numpy()


def compare(section: str, title: str, sides: dict[str, Side], bar: float, turns: int) -> list[str]:
    for side in sides.values():
        side()
    results: Numbers = take_turns(sides, turns, "rows/s")
    return Comparison(section, title, *sides, bar).lines(results)


def maps(spark: Any, sections: set[str], turns: int, scale: float) -> list[str]:
    """Sections 1 to 5."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    import orca.tensorframes as tfs

    lines = []
    rows = int(ROWS["scalar"] * scale)
    if sections & {"1", "4"}:
        frame = scalars(spark, rows)
        sides = {
            "map_blocks": lambda: timed(tfs.map_blocks(add_three(False), frame), rows),
            "pandas_udf, numpy": lambda: timed(frame.select(udf("x").alias("z"), "x"), rows),
            "map_rows": lambda: timed(tfs.map_rows(add_three(True), frame), rows),
        }
        udf = pandas_add()
        if "1" in sections:
            pair = {name: sides[name] for name in ("map_blocks", "pandas_udf, numpy")}
            lines += compare("1", "x + 3, blocks", pair, 1.0, turns)
        if "4" in sections:
            lines += compare("4", "x + 3, rows", {name: sides[name] for name in ("map_rows", "map_blocks")}, 0.9, turns)
        frame.unpersist()
    if not sections & {"2", "3", "5"}:
        return lines
    count = int(ROWS["vector"] * scale)
    table = vectors(spark, count)
    in_numpy = pandas_softmax()
    predict = predict_batch_udf(
        _predict_function, return_type=ArrayType(FloatType()), batch_size=10_000, input_tensor_shapes=[[FEATURES]]
    )
    works = {
        "map_blocks": lambda: timed(tfs.map_blocks(softmax(False), table), count),
        "map_rows": lambda: timed(tfs.map_rows(softmax(True), table), count),
        "pandas_udf, numpy": lambda: timed(table.select(in_numpy("v").alias("z"), "v"), count),
        "predict_batch_udf": lambda: timed(table.select(predict("v").alias("z"), "v"), count),
    }
    pairs = {
        "2": ("softmax(W x), blocks", "map_blocks", "pandas_udf, numpy", 1.2),
        "3": ("softmax(W x), blocks", "map_blocks", "predict_batch_udf", 1.2),
        "5": ("softmax(W x), rows", "map_rows", "map_blocks", 0.9),
    }
    for section, (title, ours, peer, bar) in pairs.items():
        if section in sections:
            lines += compare(section, title, {ours: works[ours], peer: works[peer]}, bar, turns)
    table.unpersist()
    return lines


def tiers(sections: set[str], turns: int, scale: float) -> list[str]:
    """Sections 6 and 7: the same program, run in three ways in this process."""
    import pyarrow as pa

    import orca.tensorframes as tfs
    from orca.backends.graph.frozen import freeze, import_with

    lines = []
    few = max(100, int(5_000 * scale))
    rows = max(1000, int(500_000 * scale))
    values = np.random.default_rng(0).random(rows)
    table = pa.table({"x": values})

    def by_row(tensor: Any) -> float:
        call = import_with(freeze([tensor]), {"x": ()}, {}).runnable.start(0)
        return per_second(lambda: [call(value) for value in values[:few]], few)

    cases = {"6": ("vectorized", add_three(True), 100.0), "7": ("loop in the graph", loop(), 10.0)}
    for section, (title, tensor, bar) in cases.items():
        if section in sections:
            sides = {
                f"map_rows, {title}": lambda tensor=tensor: per_second(lambda: tfs.map_rows(tensor, table), rows),
                "one run per row": lambda tensor=tensor: by_row(tensor),
            }
            lines += compare(section, f"rows, {title}", sides, bar, turns)
    return lines


def reductions(spark: Any, sections: set[str], turns: int, scale: float) -> list[str]:
    """Sections 8 and 9."""
    import pandas as pd
    from pyspark.sql import functions

    import orca.tensorframes as tfs
    import orca.tf1 as tf

    lines = []
    if "8" in sections:
        count = int(ROWS["vector"] * scale)
        table = vectors(spark, count)
        with tf.Graph().as_default():
            total = tf.reduce_sum(tf.placeholder(tf.float32, [None, FEATURES], "v_input"), 0, name="v")

        def summed(v: pd.Series) -> Any:
            return np.stack(v.to_numpy()).sum(axis=0)

        summed.__annotations__ = {"v": pd.Series, "return": np.ndarray}
        partial = functions.pandas_udf(summed, "array<float>", functions.PandasUDFType.GROUPED_AGG)
        by_partition = table.withColumn("part", functions.spark_partition_id())

        def peer() -> Any:
            parts = by_partition.groupBy("part").agg(partial("v").alias("v")).collect()
            return np.sum([row["v"] for row in parts], axis=0)

        sides: dict[str, Side] = {
            "reduce_blocks": lambda: per_second(lambda: tfs.reduce_blocks(total, table), count),
            "grouped pandas_udf": lambda: per_second(peer, count),
        }
        lines += compare("8", "sum of 64 floats", sides, 0.9, turns)
        table.unpersist()
    if "9" in sections:
        rows = int(ROWS["keys"] * scale)
        frame = keyed(spark, rows)
        with tf.Graph().as_default():
            by_key = tf.reduce_sum(tf.placeholder(tf.float64, [None], "x_input"), 0, name="x")

        def add(x: pd.Series) -> float:
            return float(x.sum())

        add.__annotations__ = {"x": pd.Series, "return": float}
        whole = functions.pandas_udf(add, "double", functions.PandasUDFType.GROUPED_AGG)
        sides = {
            "aggregate": lambda: timed(tfs.aggregate(by_key, frame.groupBy("key")), rows),
            "grouped pandas_udf": lambda: timed(frame.groupBy("key").agg(whole("x").alias("x")), rows),
        }
        lines += compare("9", f"sum for {KEYS:,} keys", sides, 0.9, turns)
        frame.unpersist()
    return lines


def first_row(spark: Any, turns: int) -> list[str]:
    """Section 10: seconds to the first row of a new program, once a job has run."""
    import orca.tensorframes as tfs

    frame = spark.range(1000, numPartitions=2).selectExpr("cast(id as double) as x").cache()
    frame.count()
    tfs.map_blocks(add_three(False), frame).first()

    def once(number: int) -> float:
        began = time.perf_counter()
        tfs.map_blocks(functools.partial(_shifted, by=float(number)), frame).first()
        return time.perf_counter() - began

    seconds = [once(number) for number in range(turns)]
    middle = statistics.median(seconds)
    verdict = "met" if middle <= 1 else "MISSED"
    every = ", ".join(f"{one:.2f}" for one in seconds)
    return [f"10  first row of a second job: {middle:.2f} s  bar <= 1 s  {verdict}  ({every})"]


def _shifted(x, by=0.0):  # type: ignore[no-untyped-def]  # AutoGraph evaluates annotations where it cannot see names
    import tensorflow as tf

    return {"z": tf.add(x, by)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="the numbers of sections, such as 1,4")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--scale", type=float, default=1.0, help="the number of rows, as a factor")
    options = parser.parse_args()
    sections = {one.strip() for one in options.only.split(",")}
    unknown = sections - set(SECTIONS)
    if unknown:
        chosen(",".join(sorted(unknown)), SECTIONS)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Imported first, so that Spark's daemon imports it before it forks.
    import orca.tf1  # noqa: F401
    from orca import init_orca_context

    print(facts(("tensorflow-cpu", "pyspark", "numpy", "pyarrow"), "2 tasks of one thread"), flush=True)
    lines = tiers(sections, options.turns, options.scale) if sections & {"6", "7"} else []
    if sections - {"6", "7"}:
        with init_orca_context(runtime="spark", cores=2) as context:
            lines += maps(context.spark, sections, options.turns, options.scale)
            lines += reductions(context.spark, sections, options.turns, options.scale)
            lines += first_row(context.spark, options.turns) if "10" in sections else []
    print("\n".join(lines))


if __name__ == "__main__":
    main()
