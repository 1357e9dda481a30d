"""Arrays of numbers sent from Java to Python as bytes become the same lists, in whichever form Java holds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from orca.shards.engines import spark_arrays
from orca.shards.engines.spark_arrays import as_lists, sent
from orca.shards.engines.spark_frames import add_columns, frame_to_parts
from orca.shards.packing import unpack

pytestmark = pytest.mark.spark

NUMBERS = ["byte", "short", "int", "bigint", "float", "double"]
ROWS = {
    "even": [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, -1, -2]],
    "ragged": [[1], [], list(range(-64, 66)), [5, 6]],
    "gaps": [[1, None, 3], [4, 5, 6], [None, None, None], [7, 8, None]],
    "ragged gaps": [[None], [*range(63), None, None, 1], [], [2, None]],
    "rows missing": [None, [1, 2, 3], None, [4, 5, 6]],
    "all missing": [None, None, None, None],
    "empty": [[], [], [], []],
}


def received_lists(frame):
    """Return the frame's columns as Python reads them, and the table that Spark sent."""
    columns, received = sent(frame, frame.columns)
    sent_table = frame.select([column.alias(str(number)) for number, column in enumerate(columns)]).toArrow()
    return pa.concat_tables(received(batch.columns) for batch in sent_table.to_batches()), sent_table


SCHEMA = "id int, features array<float>"


def sums(tables):
    for table in tables:
        lists = table.column("features").combine_chunks()
        yield pa.table({"sum": lists.flatten().to_numpy().reshape(len(lists), -1).sum(axis=1)})


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("ready", [True, False], ids=["cached", "not cached"])
def test_arrays_keep_their_values_and_types(spark_session, tmp_path, kind, ready):
    number_type = float if kind in ("float", "double") else int
    columns = {
        name: [row and [value if value is None else number_type(value) for value in row] for row in rows]
        for name, rows in ROWS.items()
    }
    schema = ", ".join(f"`{name}` array<{kind}>" for name in columns)
    stored = spark_session.createDataFrame(list(zip(*columns.values(), strict=True)), schema)
    stored.coalesce(1).write.parquet(str(tmp_path / "rows"))
    frame = spark_session.read.parquet(str(tmp_path / "rows"))
    frame = frame.cache() if ready else frame
    lists, sent_table = received_lists(frame)
    assert lists.to_pydict() == columns
    assert lists.schema.types == frame.toArrow().schema.types
    for number, rows in enumerate(columns.values()):
        blobs = sent_table.column(2 * number)
        assert blobs.type == pa.binary()
        # Columns of a file that is not cached are slices of a larger buffer, which are sent as lists.
        assert blobs.null_count == (sum(row is None for row in rows) if ready else len(rows))
    frame.unpersist()


def test_arrays_of_both_kinds_in_one_column_keep_their_rows(spark_session):
    stored = [(1, [1.5, None]), (2, [2.5]), (3, None), (4, [])]
    frame = spark_session.createDataFrame(stored, "id int, numbers array<double>").coalesce(1).cache()
    mixed = frame.selectExpr("id", "if(id = 2, from_json('[2.0, null]', 'array<double>'), numbers) as numbers")
    lists, sent_table = received_lists(mixed.select("numbers"))
    assert lists["numbers"].to_pylist() == [[1.5, None], [2.0, None], None, []]
    assert [value is None for value in sent_table.column(0).to_pylist()] == [False, True, True, False]
    frame.unpersist()


@pytest.mark.parametrize("ready", [True, False], ids=["cached", "not cached"])
def test_predictions_see_the_arrays_of_a_file(spark_session, tmp_path, ready):
    rows = np.random.default_rng(0).random((50, 70), dtype="f4")
    stored = spark_session.createDataFrame([(number, row.tolist()) for number, row in enumerate(rows)], SCHEMA)
    stored.repartition(3).write.parquet(str(tmp_path / "rows"))
    frame = spark_session.read.parquet(str(tmp_path / "rows"))
    frame = frame.cache() if ready else frame
    result = add_columns(frame, ["features"], sums).orderBy("id").toPandas()
    np.testing.assert_allclose(result["sum"], rows.sum(axis=1), rtol=1e-6)
    frame.unpersist()


def test_dense_vectors_are_sent_as_bytes(spark_session):
    from pyspark.ml.linalg import Vectors

    vectors = [Vectors.dense([1.5, 0.0]), Vectors.sparse(3, {1: 2.5}), Vectors.dense([]), Vectors.sparse(2, {})]
    frame = spark_session.createDataFrame(enumerate(vectors), ["id", "numbers"]).coalesce(1).cache()
    lists, sent_table = received_lists(frame.select("numbers"))
    assert lists["numbers"].to_pylist() == [[1.5, 0.0], [0.0, 2.5, 0.0], [], [0.0, 0.0]]
    assert [value is None for value in sent_table.column(0).to_pylist()] == [False, True, False, True]
    frame.unpersist()


@pytest.mark.parametrize("ready", [True, False], ids=["cached", "not cached"])
def test_predictions_see_the_vectors_of_a_file(spark_session, tmp_path, ready):
    from pyspark.ml.linalg import Vectors

    rows = np.random.default_rng(0).random((40, 5))
    vectors = [Vectors.dense(row) if n % 3 else Vectors.sparse(5, {2: row[2]}) for n, row in enumerate(rows)]
    stored = spark_session.createDataFrame(enumerate(vectors), ["id", "features"])
    stored.repartition(3).write.parquet(str(tmp_path / "rows"))
    frame = spark_session.read.parquet(str(tmp_path / "rows"))
    frame = frame.cache() if ready else frame
    expected = [vector.toArray().sum() for vector in vectors]
    result = add_columns(frame, ["features"], sums).orderBy("id")
    np.testing.assert_allclose(result.toPandas()["sum"], expected)
    np.testing.assert_allclose([row["sum"] for row in result.select("id", "sum").collect()], expected)
    blobs = frame_to_parts(frame, None, lambda table: table).collect()
    table = pa.concat_tables(unpack(blob) for blob in blobs).sort_by("id")
    np.testing.assert_array_equal(table["features"].to_pylist(), [vector.toArray() for vector in vectors])
    frame.unpersist()


def test_a_spark_without_access_to_bytes_sends_lists(spark_session, monkeypatch):
    frame = spark_session.createDataFrame([(1, [1.5, None]), (2, [2.5, 3.5])], SCHEMA).coalesce(1).cache()
    monkeypatch.setattr(spark_arrays, "_CATALYST", "org.apache.spark.elsewhere")
    lists, sent_table = received_lists(frame)
    assert sent_table.num_columns == 2
    assert lists.to_pydict() == {"id": [1, 2], "features": [[1.5, None], [2.5, 3.5]]}
    frame.unpersist()


def test_slices_of_the_bytes_are_read_where_they_begin():
    def java_array(values, missing=0):
        return np.int64(len(values)).tobytes() + np.uint64(missing).tobytes() + np.array(values, "f8").tobytes()

    blobs = pa.array(
        [java_array([9.0]), java_array([1.0, 2.0]), None, java_array([3.0, 0.0], missing=2), java_array([4.0, 5.0])],
        pa.binary(),
    )
    others = pa.array([[], [], [7.0], [], []], pa.list_(pa.float64()))
    expected = [[9.0], [1.0, 2.0], [7.0], [3.0, None], [4.0, 5.0]]
    for low in range(5):
        for high in range(low, 6):
            lists = as_lists(blobs[low:high], others[low:high], np.dtype("f8"))
            assert lists.to_pylist() == expected[low:high]


def test_a_frame_may_change_after_its_columns_were_added(spark_session):
    """Columns that Spark prunes later may change how Java holds the arrays, but not the numbers."""
    frame = spark_session.range(6).selectExpr("id", "array(cast(id as float), 2.0f) as features")
    result = add_columns(frame, ["features"], sums)
    expected = [id + 2.0 for id in range(6)]
    assert [row["sum"] for row in result.orderBy("id").collect()] == expected
    assert sorted(row["sum"] for row in result.select("sum").collect()) == expected
    union = result.select("sum").union(add_columns(frame.cache(), ["features"], sums).select("sum"))
    assert sorted(row["sum"] for row in union.collect()) == sorted(expected * 2)
    frame.unpersist()


def test_shards_of_a_frame_have_its_arrays(spark_session, tmp_path):
    rows = [(number, [float(number), None], "text", [[number]]) for number in range(7)]
    schema = "id int, numbers array<float>, word string, nested array<array<int>>"
    spark_session.createDataFrame(rows, schema).repartition(3).write.parquet(str(tmp_path / "rows"))
    frame = spark_session.read.parquet(str(tmp_path / "rows"))
    parts = [unpack(blob) for blob in frame_to_parts(frame, None, lambda table: table).collect()]
    result = pa.concat_tables(parts).sort_by("id").to_pylist()
    assert result == [
        {"id": id, "numbers": numbers, "word": word, "nested": nested} for id, numbers, word, nested in rows
    ]
