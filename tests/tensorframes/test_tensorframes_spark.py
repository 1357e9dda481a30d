"""TensorFrames on Spark DataFrames: maps, reductions and groups over any partitions, and errors that name the row."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import orca.tensorframes as tfs
import orca.tf1 as tf
from orca.errors import TransformError
from orca.shards.shard_formats import arrow_column
from tests.tensorframes.spark_jobs import counted

pytestmark = pytest.mark.spark


def parts(frame: Any, count: int) -> Any:
    """Return the rows in `count` partitions; with 7, some are empty."""
    return frame.repartition(count, "id") if count == 7 else frame.coalesce(1).repartition(count)


@pytest.fixture(scope="module")
def numbers(spark_session: Any) -> Any:
    values = np.random.default_rng(0).normal(size=(5, 3))
    table = pa.table({"id": np.arange(5), "x": np.arange(5.0), "v": arrow_column(values)})
    return spark_session.createDataFrame(table).cache(), values


def sums(name: str, operation: Any, shape: list[Any]) -> Any:
    with tf.Graph().as_default():
        return operation(tf.placeholder(tf.float64, shape, f"{name}_input"), 0, name=name)


def pairs(name: str, operation: Any) -> Any:
    with tf.Graph().as_default():
        left, right = (tf.placeholder(tf.float64, None, f"{name}_{number}") for number in (1, 2))
        return operation(left, right, name=name)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_reductions_equal_numpy_over_any_partitions(numbers: Any, count: int):
    frame, values = parts(numbers[0], count), numbers[1]
    np.testing.assert_allclose(
        tfs.reduce_blocks(sums("v", tf.reduce_sum, [None, 3]), frame), values.sum(axis=0), rtol=1e-12
    )
    np.testing.assert_array_equal(tfs.reduce_blocks(sums("v", tf.reduce_min, [None, 3]), frame), values.min(axis=0))
    np.testing.assert_array_equal(tfs.reduce_rows(pairs("v", tf.maximum), frame), values.max(axis=0))
    assert tfs.reduce_rows(pairs("x", tf.add), frame) == 10.0
    one = frame.filter("id = 3")
    np.testing.assert_array_equal(tfs.reduce_rows(pairs("v", tf.add), one), values[3])


@pytest.mark.parametrize("count", [1, 7])
def test_ten_thousand_and_one_rows_over_partitions_of_which_some_are_empty(spark_session: Any, count: int):
    frame = spark_session.range(10_001).selectExpr("id", "cast(id as double) as x", "array(id, id + 1) as v")
    frame = frame.repartition(count).filter("id % 3 >= 0")
    frame = frame.union(frame.filter("id < 0"))
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, name="x")
        v = tf.placeholder(tf.int64, [None], "v")
        tensor = tf.add(x, tf.cast(tf.reduce_sum(v), tf.float64), name="z")
    table = tfs.map_rows(tensor, frame).toArrow().sort_by("id")
    assert table.column_names == ["z", "id", "x", "v"]
    np.testing.assert_array_equal(table["z"], 3.0 * np.arange(10_001) + 1)


def test_k_means_stays_within_a_millionth_of_numpy(spark_session: Any):
    rng = np.random.default_rng(1)
    points = rng.normal(size=(200, 2)) + rng.integers(0, 3, (200, 1)) * 4
    frame = spark_session.createDataFrame(pa.table({"p": arrow_column(points)})).repartition(4).cache()
    ours = theirs = points[:3].copy()
    for _ in range(10):
        with tf.Graph().as_default():
            p = tf.placeholder(tf.float64, [None, 2], "p")
            distances = tf.reduce_sum((p[:, None, :] - tf.constant(ours)[None, :, :]) ** 2, 2)
            nearest = tf.argmin(distances, 1)
            total = tf.math.unsorted_segment_sum(p, nearest, 3)
            count = tf.math.unsorted_segment_sum(tf.ones_like(p[:, 0]), nearest, 3)
            columns = [tf.expand_dims(total, 0, name="total"), tf.expand_dims(count, 0, name="count")]
        with tf.Graph().as_default():
            shapes = {"total": [None, 3, 2], "count": [None, 3]}
            reduced = [
                tf.reduce_sum(tf.placeholder(tf.float64, shape, f"{name}_input"), 0, name=name)
                for name, shape in shapes.items()
            ]
        sums_of, counts = tfs.reduce_blocks(reduced, tfs.map_blocks(columns, frame, trim=True))
        ours = sums_of / counts[:, None]
        label = ((points[:, None] - theirs[None]) ** 2).sum(axis=2).argmin(axis=1)
        theirs = np.stack([points[label == one].mean(axis=0) for one in range(3)])
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    frame.unpersist()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_harmonic_mean_of_each_key_is_exact(spark_session: Any, count: int):
    frame = spark_session.range(1, 41).selectExpr("concat('k', id % 3) as key", "cast(id as double) as x", "id")
    inverse = tfs.map_rows(lambda x: {"inverse": 1.0 / x, "one": 0.0 * x + 1.0}, parts(frame, count))
    with tf.Graph().as_default():
        fetches = [tf.reduce_sum(tf.placeholder(tf.float64, [None], f"{name}_input"), 0, name=name)
                   for name in ("inverse", "one")]  # fmt: skip
        result = tfs.aggregate(fetches, inverse.groupBy("key"))
    assert result.columns == ["key", "inverse", "one"]
    means = {row.key: row.one / row.inverse for row in result.collect()}
    for key in range(3):
        values = np.array([one for one in range(1, 41) if one % 3 == key], "f8")
        assert means[f"k{key}"] == pytest.approx(len(values) / (1 / values).sum(), rel=1e-14)


def test_groups_by_expressions_and_several_keys_equal_those_of_spark(numbers: Any):
    frame = numbers[0].withColumn("even", numbers[0].id % 2 == 0)
    program = sums("x", tf.reduce_sum, [None])
    by_expression = tfs.aggregate(program, frame.groupBy((frame.id % 2).alias("rest"), "even")).collect()
    assert sorted((row.rest, row.even, row.x) for row in by_expression) == [(0, True, 6.0), (1, False, 4.0)]
    by_name = tfs.aggregate(program, frame, by=["even"]).collect()
    assert sorted((row.even, row.x) for row in by_name) == [(False, 4.0), (True, 6.0)]


def test_pictures_are_decoded_resized_and_averaged(spark_session: Any):
    image = pytest.importorskip("PIL.Image")
    pictures = []
    for number, size in enumerate([(8, 6), (20, 10), (5, 5)]):
        buffer = io.BytesIO()
        image.new("RGB", size, (40 * number, 100, 200)).save(buffer, "JPEG", quality=100)
        pictures.append((number, bytearray(buffer.getvalue())))
    frame = spark_session.createDataFrame(pictures, "id int, picture binary")
    with tf.Graph().as_default():
        pixels = tf.image.decode_jpeg(tf.placeholder(tf.string, [], "picture"), channels=3)
        small = tf.image.resize(tf.cast(pixels, tf.float32), [4, 4])
        mean = tf.reduce_mean(small, [0, 1], name="mean")
        rows = tfs.map_rows(mean, frame).orderBy("id").collect()
    for number, row in enumerate(rows):
        np.testing.assert_allclose(row.mean, [40 * number, 100, 200], atol=3)


def test_strings_have_lengths_words_and_hashes(spark_session: Any):
    texts = ["one", "two words", "ünï cödé here", ""]
    frame = spark_session.createDataFrame([(text,) for text in texts], ["text"])
    with tf.Graph().as_default():
        text = tf.placeholder(tf.string, name="text")
        fetches = {
            "length": tf.strings.length(text, unit="UTF8_CHAR"),
            "words": tf.size(tf.strings.split([text]).values),
            "hash": tf.strings.to_hash_bucket_fast(text, 1000),
            "upper": tf.strings.upper(text),
        }
        rows = tfs.map_rows(fetches, frame).collect()
        with tf.Session() as session:
            expected = [session.run(fetches, {text: one}) for one in texts]
    for row, values in zip(rows, expected, strict=True):
        assert (row.length, row.words, row.hash) == (values["length"], values["words"], values["hash"])
        assert row.upper == values["upper"].decode()


def test_every_dtype_and_ml_vectors_cross_in_both_directions(spark_session: Any):
    from pyspark.ml.linalg import Vectors

    kinds = {"byte": "i1", "short": "i2", "int": "i4", "long": "i8", "float": "f4", "double": "f8", "boolean": "?"}
    select = [f"cast(id % 2 as {kind}) as {kind}_" for kind in kinds]
    frame = spark_session.range(4).selectExpr(*select, "array(array(id, 1), array(2, id)) as nested")
    names = [f"{kind}_" for kind in kinds] + ["nested"]
    with tf.Graph().as_default():
        build = [tf.identity(tfs.block(frame, name), name=f"{name}o") for name in names]
    row = tfs.map_blocks(build, frame).collect()[1]
    for kind in kinds:
        assert row[f"{kind}_o"] == row[f"{kind}_"]
    assert row.nestedo == row.nested
    types = dict(tfs.map_blocks(build, frame).dtypes)
    assert [types[f"{kind}_o"] for kind in kinds] == [types[f"{kind}_"] for kind in kinds]
    vectors = spark_session.createDataFrame([(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, [0], [3.0]),)], ["v"])
    result = tfs.map_blocks(lambda v: {"z": tf.cast(v * 2, tf.float16), "u": tf.cast(v, tf.uint8)}, vectors)
    assert [(one.u, one.z) for one in result.collect()] == [([1, 2], [2.0, 4.0]), ([3, 0], [6.0, 0.0])]


def test_blocks_have_the_requested_rows(spark_session: Any):
    frame = spark_session.range(25, numPartitions=2).withColumnRenamed("id", "x")
    count = lambda x: {"rows": x * 0 + len(x)}  # noqa: E731
    assert {row.rows for row in tfs.map_blocks(count, frame, block_rows=5).collect()} == {5, 2, 3}
    whole = tfs.map_blocks(count, frame, block_rows="partition").collect()
    assert [row.x for row in whole] == list(range(25))
    assert [row.rows for row in whole] == [12] * 12 + [13] * 13
    spark_session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    try:
        assert {row.rows for row in tfs.map_blocks(count, frame).collect()} <= {4, 1}
        assert {row.rows for row in tfs.map_blocks(count, frame, block_rows=6).collect()} == {6, 1}
    finally:
        spark_session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_shapes_are_analyzed_given_and_printed(numbers: Any, capsys: Any):
    frame = numbers[0]
    with counted(frame.sparkSession) as jobs:
        tfs.print_schema(frame)
        stated = tfs.append_shape(frame, "v", [3])
        assert jobs() == 0
    assert " |-- v: array (nullable = true) double[?,?]" in capsys.readouterr().out
    for known in (stated, tfs.analyze(frame)):
        tfs.print_schema(known.filter("id > 1"))
        assert " |-- v: array (nullable = true) double[?,3]" in capsys.readouterr().out
        with tf.Graph().as_default():
            assert tfs.block(known, "v").shape.as_list() == [None, 3]
            assert tfs.row(known, "v", tf_name="cell").shape.as_list() == [3]
    ragged = frame.selectExpr(
        "if(id > 1, array(1.5D), array(1.5D, 2D)) as r", "array(array(id, 2)) as m", "current_date() as d"
    )
    tfs.print_schema(tfs.analyze(ragged))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("double[?,?]")
    assert lines[2].endswith("long[?,1,2]")
    assert lines[3].endswith("<no tensor info>")


@pytest.fixture(scope="module")
def doubled() -> Any:
    with tf.Graph().as_default():
        return tf.multiply(tf.placeholder(tf.int32, name="x"), 2, name="z")


def test_errors_at_run_time_name_the_column_and_the_first_bad_row(spark_session: Any, doubled: Any):
    def frame(values: list[Any], kind: str) -> Any:
        return spark_session.createDataFrame([(value,) for value in values], f"x {kind}").coalesce(1)

    ragged = frame([[1, 2], [3, 4], [5]], "array<int>")
    checks = [
        (tfs.map_rows(doubled, frame([1, 2, None, 4], "int")), r"Column 'x' is null in row 2 \(1 nulls"),
        (tfs.map_blocks(doubled, frame([[1, 2], [3, None]], "array<int>")), r"Column 'x' has a null .* in row 1"),
        (tfs.map_blocks(doubled, ragged), r"Column 'x' has arrays of 2 values, but of 1 in row 2.*map_rows"),
        (tfs.map_rows(doubled, frame([1, 5, 2**40], "long")), r"Column 'x' has 1099511627776 in row 2.*int32"),
        (tfs.map_rows(lambda x: {"z": x}, tfs.append_shape(ragged, "x", [2])), r"cell of shape \[1\] in row 2.*\[2\]"),
        (
            tfs.map_blocks(lambda x: {"z": x[:2]}, frame([1, 2, 3], "int")),
            r"result 'z' has 2 rows, but the block has 3; the block begins with row 0.*trim=True",
        ),
    ]
    for result, message in checks:
        with pytest.raises(TransformError, match=message):
            result.collect()
    assert [row.z for row in tfs.map_rows(doubled, ragged).collect()] == [[2, 4], [6, 8], [10]]


def test_bad_input_is_refused_without_a_job(spark_session: Any):
    from tests.tensorframes.test_tensorframes_errors import REFUSED, frame_of

    frame = spark_session.createDataFrame(frame_of())
    with counted(spark_session) as jobs:
        for name, (call, error, message) in REFUSED.items():
            with tf.Graph().as_default(), pytest.raises(error, match=message):
                call(frame)
                pytest.fail(f"{name} was accepted")
        assert jobs() == 0
    empty = frame.filter("i > 100")
    with pytest.raises(ValueError, match="no rows"):
        tfs.reduce_blocks(lambda x_input: {"x": x_input.sum(axis=0)}, empty)
    assert tfs.map_rows(lambda x: {"z": x + 1}, empty).collect() == []
