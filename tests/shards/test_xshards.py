"""XShards: every method on all three engines with the same expectations."""

from __future__ import annotations

import gc
import itertools
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orca import XShards
from orca.context import Context
from orca.errors import ArgumentError, ColumnError, DataError, TransformError

FEW = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def frame(rows=23, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "key": rng.integers(0, 5, rows),
            "name": rng.choice(["ann", "bob", "cy"], rows),
            "value": rng.normal(size=rows).round(3),
            "gap": np.where(rng.random(rows) < 0.3, np.nan, rng.normal(size=rows)),
        }
    )


def shards_of(data, sizes):
    borders = np.cumsum([0, *sizes])
    return XShards.from_shards([data.iloc[a:b] for a, b in itertools.pairwise(borders)])


frames = st.builds(lambda rows, seed: frame(rows, seed), rows=st.integers(1, 40), seed=st.integers(0, 1000))


def same(left, right):
    pd.testing.assert_frame_equal(left.reset_index(drop=True), right.reset_index(drop=True), check_dtype=False)


class TestCreatingAndCollecting:
    @FEW
    @given(
        data=st.one_of(
            st.lists(st.integers(-5, 5), min_size=1, max_size=30).map(np.array),
            st.integers(1, 30).map(lambda n: {"x": np.ones((n, 2, 3)), "y": [np.arange(n), np.arange(n) * 2.0]}),
            st.integers(1, 30).map(lambda n: (np.arange(n), {"deep": np.arange(n).astype("U3")})),
        ),
        count=st.integers(1, 5),
    )
    def test_partition_and_collect_return_the_same_rows(self, context: Context, data, count):
        rows = len(data) if isinstance(data, np.ndarray) else len(data["y"][0] if isinstance(data, dict) else data[0])
        count = min(count, rows)
        shards = XShards.partition(data, num_shards=count)
        assert shards.num_partitions() == count
        assert len(shards) == rows
        assert max(shards.shard_rows()) - min(shards.shard_rows()) <= 1
        np.testing.assert_equal(shards.to_numpy(), data)

    def test_frames_tables_and_lists(self, context: Context):
        data = frame()
        same(XShards.from_pandas(data, 4).to_pandas(), data)
        table = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
        shards = XShards.from_arrow(table, 2)
        assert shards.to_numpy().equals(table)
        same(shards.to_pandas(), table.to_pandas())
        assert XShards.partition([3, 1, 2]).to_numpy().tolist() == [3, 1, 2]
        assert XShards.partition(["b", "a"]).to_numpy().tolist() == ["b", "a"]

    def test_bad_requests_are_refused(self, context: Context):
        with pytest.raises(ArgumentError, match="num_shards=9 is more than the 3 rows"):
            XShards.partition(np.arange(3), num_shards=9)
        with pytest.raises(DataError, match="different numbers of rows"):
            XShards.partition({"a": np.arange(3), "b": np.arange(4)})
        with pytest.raises(DataError, match="Shard 1 has"):
            XShards.from_shards([np.arange(3), np.arange(3.0)])

    def test_first_take_head_iteration_and_repr(self, context: Context):
        shards = shards_of(frame(), [3, 0, 20])
        same(shards.first(), frame().iloc[:3])
        assert [len(shard) for shard in shards.take(2)] == [3, 0]
        same(shards.head(7), frame().iloc[:7])
        same(shards.head(2), frame().iloc[:2])
        assert [len(shard) for shard in shards] == [3, 0, 20]
        assert "3 partitions" in repr(shards)
        assert "<table" in shards._repr_html_()
        assert shards.get_schema()["columns"] == ["key", "name", "value", "gap"]
        assert shards.get_schema()["dtypes"]["value"] == "float64"


class TestTransforming:
    def test_transform_is_lazy_chained_and_takes_arguments(self, context: Context, tmp_path):
        mark = tmp_path / "ran"

        def touch(shard, path):
            os.write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b"x")
            return shard

        shards = XShards.partition(np.arange(10), num_shards=2)
        later = shards.transform_shard(touch, str(mark)).transform_shard(lambda s, a, b: s * a + b, 3, 1)
        assert not mark.exists()
        np.testing.assert_array_equal(later.to_numpy(), np.arange(10) * 3 + 1)
        assert len(mark.read_text()) == 2
        assert not shards.is_cached()

    def test_cache_computes_once(self, context: Context, tmp_path):
        mark = tmp_path / "ran"

        def touch(shard):
            mark.open("a").write("x")
            return shard

        shards = XShards.partition(np.arange(10), num_shards=2).transform_shard(touch).cache()
        assert shards.is_cached()
        for _ in range(3):
            assert len(shards.collect()) == 2
        assert len(mark.read_text()) == 2
        assert not shards.uncache().is_cached()
        assert shards.compute().is_cached()

    def test_any_object_may_be_a_shard(self, context: Context):
        shards = XShards.partition(np.arange(6), num_shards=3).transform_shard(lambda s: f"{s.sum()} apples")
        assert shards.collect() == ["1 apples", "5 apples", "9 apples"]
        assert len(shards) == 3
        lists = XShards.partition(np.arange(6), num_shards=3).transform_shard(lambda s: [str(v) for v in s])
        assert lists.collect() == [["0", "1"], ["2", "3"], ["4", "5"]]
        assert len(lists) == 6

    def test_items_columns_select_and_split(self, context: Context):
        shards = XShards.partition({"x": np.arange(6), "y": np.arange(6) * 2}, num_shards=2)
        np.testing.assert_array_equal(shards["y"].to_numpy(), np.arange(6) * 2)
        with pytest.raises(Exception, match="no entry 'z'"):
            shards["z"].collect()
        frames_ = shards_of(frame(), [10, 13])
        same(frames_.select(["value", "key"]).to_pandas(), frame()[["value", "key"]])
        same(frames_[["key"]].to_pandas(), frame()[["key"]])
        np.testing.assert_array_equal(frames_["key"].to_numpy(), frame()["key"])
        with pytest.raises(Exception, match=r"'vaule' is not in the DataFrame.*Did you mean 'value'"):
            frames_.select("vaule").collect()
        left, right = XShards.partition([np.arange(4), np.arange(4) + 1], num_shards=2).split()
        np.testing.assert_array_equal(left.to_numpy() + 1, right.to_numpy())

    def test_failing_function_names_shard_and_error_on_every_engine(self, context: Context):
        def fussy(shard):
            if shard[0] >= 4:
                raise LookupError("no such thing")
            return shard

        shards = XShards.partition(np.arange(6), num_shards=3).transform_shard(fussy)
        with pytest.raises(TransformError, match="shard 2: LookupError: no such thing"):
            shards.collect()
        with pytest.raises(ArgumentError, match="fn=3: expected a function"):
            shards.transform_shard(3)
        with pytest.raises(TransformError, match=r"shard \d: ColumnError: partition_by: 'nme' is not in the DataFrame"):
            shards_of(frame(), [10, 13]).partition_by("nme").collect()


class TestReordering:
    @FEW
    @given(data=frames, count=st.integers(1, 6), cut=st.floats(0, 1))
    def test_repartition_is_even_and_keeps_order(self, context: Context, data, count, cut):
        first, count = int(cut * len(data)), min(count, max(len(data), 1))
        shards = shards_of(data, [first, 0, len(data) - first]).repartition(count)
        assert shards.num_partitions() == count
        assert max(shards.shard_rows()) - min(shards.shard_rows()) <= 1
        same(shards.to_pandas(), data)

    @FEW
    @given(data=frames, count=st.integers(1, 4))
    def test_partition_by_brings_equal_keys_together(self, context: Context, data, count):
        half = len(data) // 2
        shards = shards_of(data, [half, len(data) - half]).partition_by(["key", "name"], count)
        result = shards.collect()
        assert len(result) == count
        keys = [set(zip(part["key"], part["name"], strict=True)) for part in result]
        assert sum(map(len, keys)) == len(set().union(*keys))
        order = ["key", "name", "value", "gap"]
        same(pd.concat(result).sort_values(order), data.sort_values(order))

    @FEW
    @given(data=frames, upward=st.tuples(st.booleans(), st.booleans()), column=st.sampled_from(["key", "gap", "name"]))
    def test_sort_values_equals_pandas(self, context: Context, data, upward, column):
        third = len(data) // 3
        shards = shards_of(data, [third, len(data) - 2 * third, third])
        sorted_ = shards.sort_values([column, "value"], ascending=list(upward))
        same(sorted_.to_pandas(), data.sort_values([column, "value"], ascending=list(upward), kind="stable"))

    @FEW
    @given(data=frames)
    def test_group_by_equals_pandas(self, context: Context, data):
        half = len(data) // 2
        shards = shards_of(data, [half, len(data) - half])
        agg = {"value": ["sum", "max"], "gap": "count"}
        result = shards.group_by("key", agg=agg).to_pandas().sort_values("key")
        expected = data.groupby("key", as_index=False).agg(agg)
        expected.columns = ["key", "value_sum", "value_max", "gap_count"]
        same(result, expected)
        sizes = shards.group_by(["key", "name"]).to_pandas()
        assert sizes["size"].sum() == len(data)
        joined = shards.group_by("key", agg={"value": "max"}, join=True).to_pandas()
        assert len(joined) == len(data)
        assert (joined["value_agg"] >= joined["value"]).all()

    @FEW
    @given(left=frames, right=frames, how=st.sampled_from(["inner", "left", "right", "outer"]))
    def test_merge_equals_pandas(self, context: Context, left, right, how):
        right = right[["key", "value"]].astype({"key": "f8"})
        half = len(left) // 2
        result = shards_of(left, [half, len(left) - half]).merge(XShards.from_pandas(right, 1), how=how, on="key")
        expected = left.merge(right, how=how, on="key")
        order = ["key", "value_x", "value_y", "gap", "name"]
        same(result.to_pandas()[expected.columns].sort_values(order), expected.sort_values(order))

    @FEW
    @given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4))
    def test_zip_pairs_shards(self, context: Context, sizes):
        count = sum(sizes)
        borders = np.cumsum([0, *sizes])
        pieces = [np.arange(a, b) for a, b in itertools.pairwise(borders)]
        left = XShards.from_shards(pieces)
        pairs = left.zip(left.transform_shard(lambda shard: shard * 10))
        assert len(pairs) == count
        one, two = pairs.split()
        np.testing.assert_array_equal(one.to_numpy() * 10, two.to_numpy())

    def test_zip_of_different_lengths_is_refused(self, context: Context):
        with pytest.raises(ArgumentError, match="2 shards cannot be paired with 3"):
            XShards.partition(np.arange(6), 2).zip(XShards.partition(np.arange(6), 3))

    def test_zip_of_shards_with_different_rows_is_refused(self, context: Context):
        left, right = shards_of(frame(), [3, 20]), shards_of(frame(), [11, 12])
        with pytest.raises(TransformError, match=r"shard [01]: DataError: zip: a shard of \d+ rows cannot be paired"):
            left.zip(right).collect()
        names = left.transform_shard(lambda part: "a name")
        assert [two for _, two in left.zip(names).collect()] == ["a name", "a name"]  # has no rows

    def test_lists_of_plain_values_are_repartitioned(self, context: Context):
        shards = XShards.partition(np.arange(10), 4)
        for rows, values in {
            "numbers": list(range(10)),
            "texts": [str(n) for n in range(10)],
            "records": [{"n": n, "square": n * n} for n in range(10)],
        }.items():
            lists = shards.transform_shard(lambda part, values=values: [values[n] for n in part])
            even = lists.repartition(3)
            assert [len(part) for part in even.collect()] == [3, 3, 4], rows
            assert list(itertools.chain(*even.collect())) == values
            assert lists.repartition(10).shard_rows().count(1) == 10
            assert lists.head(3) == values[:3]
            assert lists.sample(0.5).shard_rows() == [1, 2, 1, 2]

    def test_groups_by_sparks_names_and_without_columns(self, context: Context):
        data = frame(40)
        shards = shards_of(data, [10, 0, 30])
        ours = {"value": ["avg", "stddev", "count", "max", "stddev_pop"], "name": ["countDistinct"]}
        theirs = {"value": ["mean", "std", "count", "max"], "name": ["nunique"]}
        result = shards.group_by("key", agg=ours).sort_values("key").to_pandas()
        expected = data.groupby("key").agg(theirs)
        assert list(result.columns)[1:] == [*(f"value_{name}" for name in ours["value"]), "name_countDistinct"]
        population = data.groupby("key")["value"].std(ddof=0)
        np.testing.assert_allclose(result["value_stddev_pop"], population)
        np.testing.assert_allclose(result.drop(columns=["key", "value_stddev_pop"]), expected)
        single = shards.group_by("key", agg={"value": "avg"}).sort_values("key").to_pandas()
        np.testing.assert_allclose(single["value"], expected["value"]["mean"])

        for columns in ([], None):
            whole = shards.group_by(columns, agg={"value": ["avg", "count"], "key": "max"}).to_pandas()
            assert whole.to_dict("records") == [
                {"value_avg": pytest.approx(data["value"].mean()), "value_count": 40, "key_max": data["key"].max()}
            ]
        assert shards.group_by().to_pandas()["size"].tolist() == [40]
        joined = shards.group_by(agg={"value": "avg"}, join=True)
        assert joined.num_partitions() == 3
        same(joined.to_pandas(), data.assign(value_agg=data["value"].mean()))


class TestSmallResults:
    @FEW
    @given(data=frames, seed=st.integers(0, 9))
    def test_unique_deduplicates_and_sample(self, context: Context, data, seed):
        half = len(data) // 2
        shards = shards_of(data, [half, len(data) - half])
        assert shards["name"].unique().tolist() == data["name"].unique().tolist()
        assert shards["key"].unique().tolist() == data["key"].unique().tolist()
        few = shards.select(["key", "name"])
        result = few.deduplicates().to_pandas().sort_values(["key", "name"])
        same(result, data[["key", "name"]].drop_duplicates().sort_values(["key", "name"]))
        picked = shards.sample(0.5, seed=seed)
        assert picked.shard_rows() == [round(half * 0.5), round((len(data) - half) * 0.5)]
        same(picked.to_pandas(), shards.sample(0.5, seed=seed).to_pandas())
        assert len(picked.to_pandas().merge(data, how="left", indicator=True).query("_merge == 'left_only'")) == 0

    def test_describe_max_nulls_and_missing(self, context: Context):
        data = frame(50)
        shards = shards_of(data, [20, 0, 30])
        expected = data.describe().loc[["count", "mean", "std", "min", "max"]]
        pd.testing.assert_frame_equal(shards.describe(), expected, rtol=1e-9, check_dtype=False)
        assert shards.max_values("value") == data["value"].max()
        assert shards.max_values(["key", "gap"]) == {"key": data["key"].max(), "gap": data["gap"].max()}
        assert shards.get_null_sum() == data.isna().sum().to_dict()
        same(shards.drop_missing_value().to_pandas(), data.dropna())
        same(shards.drop_missing_value(["key"]).to_pandas(), data)

    def test_features_and_labels(self, context: Context):
        data = frame()
        shards = shards_of(data, [11, 12])
        lists = shards.assembleFeatureLabelCols(["key", "value"], "name")
        first = lists.first()
        assert [part.shape for part in first["x"]] == [(11,), (11,)]
        stacked = lists.stack_feature_labels().to_numpy()
        np.testing.assert_array_equal(stacked["x"], data[["key", "value"]].to_numpy())
        assert stacked["y"].tolist() == data["name"].tolist()
        features = shards.to_features(["key", "value"], "gap").to_numpy()
        np.testing.assert_array_equal(features["x"], data[["key", "value"]].to_numpy())
        with pytest.raises(Exception, match=r"feature_cols='kye' is not in the data.*Did you mean 'key'"):
            shards.to_features("kye", None).collect()


class TestSavingAndMoving:
    def test_save_and_load_pickle(self, context: Context, tmp_path):
        shards = shards_of(frame(), [5, 18])
        path = str(tmp_path / "saved")
        shards.save_pickle(path)
        again = XShards.load_pickle(path)
        assert again.shard_rows() == [5, 18]
        same(again.to_pandas(), frame())
        assert XShards.load_pickle(path, minPartitions=4).num_partitions() == 4
        shards.save_pickle(path)
        os.unlink(f"{path}/part-00001.pickle")
        with pytest.raises(DataError, match="should have 2 shards and has 1"):
            XShards.load_pickle(path)
        with pytest.raises(DataError, match="holds no saved shards"):
            XShards.load_pickle(str(tmp_path))

    def test_shards_move_to_the_local_engine_and_back(self, context: Context):
        shards = shards_of(frame(), [5, 18])
        there = shards.to_engine("local")
        assert there.engine.name == "local"
        same(
            there.transform_shard(lambda part: part.assign(key=part["key"] + 1)).to_pandas(),
            frame().assign(key=frame()["key"] + 1),
        )
        back = there.to_engine(context.runtime)
        assert back.engine.name == context.runtime
        assert back.shard_rows() == [5, 18]

    def test_nothing_is_kept_after_the_last_reference(self, local: Context):
        from orca.shards import store

        gc.collect()
        before = set(os.listdir(store.folder()))
        shards = XShards.partition(np.zeros((1000, 10)), num_shards=4)
        doubled = shards.transform_shard(lambda shard: shard * 2).repartition(2)
        assert len(doubled) == 1000
        assert set(os.listdir(store.folder())) - before
        del shards, doubled
        gc.collect()
        assert set(os.listdir(store.folder())) == before


@pytest.mark.spark
def test_spark_frames_survive_a_round_trip(spark_session):
    from orca import init_orca_context

    init_orca_context(runtime="spark")
    data = frame()
    source = spark_session.createDataFrame(data).repartition(3)
    shards = XShards.from_spark_df(source)
    assert shards.num_partitions() == source.rdd.getNumPartitions()
    order = ["key", "name", "value"]
    same(shards.to_pandas().sort_values(order), data.sort_values(order))
    back = shards.to_spark_df()
    assert back.columns == source.columns
    same(back.toPandas().sort_values(order), data.sort_values(order))
    arrays = XShards.partition({"image": np.arange(24.0).reshape(4, 2, 3), "label": np.arange(4)}, 2).to_spark_df()
    assert arrays.schema["image"].dataType.simpleString() == "array<array<double>>"
    again = XShards.from_spark_df(arrays).to_features("image", "label").to_numpy()
    np.testing.assert_array_equal(again["x"], np.arange(24.0).reshape(4, 2, 3))
    with pytest.raises(ColumnError, match="Did you mean 'value'"):
        XShards.from_spark_df(source, columns=["vaule"])


@pytest.mark.spark
def test_rdd_records_are_stacked(spark_session):
    from orca import init_orca_context

    sc = init_orca_context(runtime="spark")
    rdd = sc.parallelize(range(7), 3).map(lambda i: [np.full((2, 2), i), np.array([i])])
    images, labels = XShards.from_rdd(rdd).to_numpy()
    assert images.shape == (7, 2, 2)
    assert labels[:, 0].tolist() == list(range(7))
    gaps = XShards.from_rdd(sc.parallelize(range(3), 5).map(lambda i: np.array([i])))
    assert sum(gaps.shard_rows()) == 3
    assert gaps.num_partitions() == len(gaps.collect()) == 5
    np.testing.assert_array_equal(gaps.repartition(2).to_numpy()[:, 0], np.arange(3))


@pytest.mark.spark
def test_frames_and_tables_in_an_rdd_keep_their_columns(spark_session):
    from orca import init_orca_context

    sc = init_orca_context(runtime="spark")
    data = frame()
    pieces = [data.iloc[low : low + 5].reset_index(drop=True) for low in range(0, 23, 5)]
    shards = XShards.from_rdd(sc.parallelize(pieces, 3))
    assert list(shards.first().columns) == list(data.columns)
    same(shards.to_pandas(), data)
    tables = XShards.from_rdd(sc.parallelize([pa.table({"a": [1, 2]}), pa.table({"a": [3]})], 4))
    assert tables.to_pandas()["a"].tolist() == [1, 2, 3]


@pytest.mark.ray
def test_ray_datasets_survive_a_round_trip(ray_cluster):
    import ray.data

    from orca import init_orca_context

    init_orca_context(runtime="ray", cores=4)
    data = frame()
    shards = XShards.from_ray_dataset(ray.data.from_pandas([data.iloc[:10], data.iloc[10:]]))
    assert shards.shard_rows() == [10, 13]
    same(shards.to_pandas(), data)
    back = shards.to_ray_dataset().to_pandas()
    same(back.astype({"gap": "f8", "value": "f8", "key": "i8"}), data)
