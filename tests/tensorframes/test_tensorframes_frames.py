"""The same program gives the same rows on every kind of data, and changes none of them in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import orca.tensorframes as tfs
import orca.tf1 as tf
from orca import XShards
from orca.context import Context
from orca.errors import DataError, TransformError

KEYS = [0, 1, 0, 2, 1, 0]
VECTORS = np.arange(12, dtype="f4").reshape(6, 2)


def table() -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), 2).cast(pa.list_(pa.float32()))
    return pa.table({"key": KEYS, "x": np.arange(6.0), "v": lists, "name": list("abcdef")})


def fetches() -> list[Any]:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, name="x")
        v = tf.placeholder(tf.float32, name="v")
        return [tf.multiply(v, 2.0, name="w"), tf.add(x, 1.0, name="a")]


def sums() -> list[Any]:
    with tf.Graph().as_default():
        return [
            tf.reduce_sum(tf.placeholder(tf.float32, [None, 2], "v_input"), 0, name="v"),
            tf.reduce_max(tf.placeholder(tf.float64, [None], "x_input"), 0, name="x"),
        ]


def check_map(columns: list[str], rows: dict[str, Any]) -> None:
    assert columns == ["a", "w", "key", "x", "v", "name"]
    np.testing.assert_array_equal(rows["a"], np.arange(6.0) + 1)
    np.testing.assert_array_equal(np.stack([np.asarray(one) for one in rows["w"]]), VECTORS * 2)
    assert list(rows["name"]) == list("abcdef")


def check_groups(rows: dict[str, Any]) -> None:
    found = {key: (np.asarray(v).tolist(), x) for key, v, x in zip(rows["key"], rows["v"], rows["x"], strict=True)}
    assert found == {0: ([14.0, 17.0], 5.0), 1: ([10.0, 12.0], 4.0), 2: ([6.0, 7.0], 3.0)}


def test_arrow_tables_pandas_and_polars_are_copied_with_the_new_columns_first():
    data = table()
    frame = data.to_pandas().set_index(pd.Index(list("ghijkl"), name="letter"))
    wide = pl.DataFrame(data)
    for call in (tfs.map_rows, tfs.map_blocks):
        result = call(fetches(), data)
        check_map(result.column_names, result.to_pydict())
        result = call(fetches(), frame)
        check_map(list(result.columns), result)
        assert list(result.index) == list("ghijkl")
        assert result.index.name == "letter"
        result = call(fetches(), wide)
        assert isinstance(result, pl.DataFrame)
        check_map(result.columns, result.to_dict(as_series=False))
    assert data.column_names == list(frame.columns) == wide.columns == ["key", "x", "v", "name"]
    for one in (data, frame, wide):
        largest, total = (tfs.reduce_blocks(sums(), one)[place] for place in (1, 0))
        assert largest == 5.0
        np.testing.assert_array_equal(total, VECTORS.sum(axis=0))
        grouped = tfs.aggregate(sums(), one, by="key")
        assert type(grouped) is type(one)
        check_groups(grouped.to_pydict() if one is data else {name: list(grouped[name]) for name in grouped.columns})
    check_groups(tfs.aggregate(sums(), frame.groupby("key")).to_dict("list"))
    trimmed = tfs.map_blocks(lambda x: {"s": x[:2]}, frame, trim=True)
    assert trimmed["s"].tolist() == [0.0, 1.0]


def test_placeholders_one_rank_higher_make_map_rows_of_pandas_a_block():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0]})
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [None], "x")
        share = tf.divide(x, tf.reduce_sum(x), name="z")
    assert tfs.map_rows(share, frame)["z"].tolist() == [1 / 6, 2 / 6, 3 / 6]
    with pytest.raises(DataError, match="That is a block: use map_blocks"):
        tfs.map_rows(share, pa.Table.from_pandas(frame))


def test_shards_of_frames_on_every_engine(context: Context, runtime: str):
    kinds = {"local": [table(), table().to_pandas()], "ray": [table()], "spark": [table().to_pandas()]}
    for data in kinds[runtime]:
        shards = XShards.partition(data, 3)
        mapped = tfs.map_rows(fetches(), shards)
        result = mapped.to_pandas()
        check_map(list(result.columns), result)
        assert type(mapped.first()) is type(data)
        total, largest = tfs.reduce_blocks(sums(), shards)
        np.testing.assert_array_equal(total, VECTORS.sum(axis=0))
        assert largest == 5.0
        assert tfs.reduce_rows(lambda x_1, x_2: {"x": x_1 + x_2}, shards) == {"x": 15.0}
        check_groups(tfs.aggregate(sums(), shards, by="key").to_pandas().to_dict("list"))
        assert tfs.analyze(shards) is shards
        with pytest.raises(TransformError, match=r"Column 'v' has cells of shape \[2\], not \[3\]"):
            tfs.append_shape(shards, "v", [3]).collect()


def test_shapes_of_shards_are_printed_over_all_shards(local: Context, capsys: pytest.CaptureFixture[str]):
    shards = XShards.from_shards([pa.table({"v": [[1.0, 2.0]]}), pa.table({"v": [[3.0]]})])
    tfs.print_schema(shards)
    tfs.print_schema(shards.transform_shard(lambda part: part.slice(0, 1).append_column("m", pa.array([[[1], [2]]]))))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == " |-- v: array (nullable = true) double[?,?]"
    assert lines[4] == " |-- m: array (nullable = true) long[?,2,1]"
    with pytest.raises(DataError, match="expected DataFrames or Arrow tables"):
        tfs.map_rows(lambda x: {"z": x}, XShards.partition({"x": np.zeros(4)}))


@pytest.mark.ray
def test_ray_datasets_stay_datasets(ray_cluster: Any):
    import ray.data

    from orca import init_orca_context

    init_orca_context(runtime="ray", cores=2)
    dataset = ray.data.from_arrow([table().slice(0, 4), table().slice(4)])
    result = tfs.map_blocks(fetches(), dataset)
    assert isinstance(result, ray.data.Dataset)
    frame = result.to_pandas()
    check_map(list(frame.columns), frame)
    assert tfs.reduce_blocks(sums(), dataset)[1] == 5.0
    check_groups(tfs.aggregate(sums(), dataset, by="key").to_pandas().to_dict("list"))
    images = ray.data.from_numpy(np.arange(24.0).reshape(2, 3, 4))
    bright = tfs.map_rows(lambda data: {"mean": data.mean(axis=(0, 1))}, images).to_pandas()
    assert bright["mean"].tolist() == [5.5, 17.5]
