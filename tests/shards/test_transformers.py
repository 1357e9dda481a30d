"""Scalers and indexer agree with scikit-learn and pandas on all three engines, however the rows are split."""

from __future__ import annotations

import decimal
import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import preprocessing

from orca import XShards
from orca.context import Context
from orca.errors import ArgumentError, ColumnError, DataError, NotFittedError, TransformError
from orca.shards.transformers import MinMaxScaler, StandardScaler, StringIndexer

FEW = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NUMBERS = ["plain", "far", "tiny", "gap", "same", "integer"]


def frame(rows=23, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "plain": rng.normal(size=rows),
            "far": 1e3 + rng.normal(size=rows),
            "tiny": rng.normal(size=rows) * 1e-9,
            "gap": np.where(rng.random(rows) < 0.3, np.nan, rng.normal(size=rows)),
            "same": 0.1,
            "integer": rng.integers(-50, 50, rows),
            "name": rng.choice(["ann", "bob", "cy", "dee"], rows, p=[0.1, 0.4, 0.4, 0.1]),
            "code": rng.integers(0, 4, rows),
        }
    )


frames = st.builds(frame, rows=st.integers(1, 40), seed=st.integers(0, 1000))
cuts = st.lists(st.floats(0, 1), min_size=0, max_size=3)
"""Where to split, as fractions of the rows; equal entries and the ends make empty shards."""


def pieces(data, where):
    borders = [0, *sorted(round(cut * len(data)) for cut in where), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


def shards_of(data, where=(0.2, 0.2, 0.7)):
    return XShards.from_shards(pieces(data, where))


def dicts_of(arrays, where=(0.2, 0.2, 0.7)):
    cut = {name: pieces(array, where) for name, array in arrays.items()}
    return XShards.from_shards([dict(zip(cut, parts, strict=True)) for parts in zip(*cut.values(), strict=True)])


def close(result, expected, atol=1e-9):
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=atol)


def values(learned):
    return np.array([learned[name] for name in NUMBERS])


def quietly(fit, data):
    """Fit without the warning that scikit-learn gives for columns without values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return fit(data)


class TestScalers:
    @FEW
    @given(data=frames, where=cuts, with_mean=st.booleans(), with_std=st.booleans())
    def test_standard_scaler_equals_sklearn_however_the_rows_are_split(
        self, context: Context, data, where, with_mean, with_std
    ):
        shards = shards_of(data, where)
        scaler = StandardScaler(inputCol=NUMBERS, with_mean=with_mean, with_std=with_std)
        scaled = scaler.fit_transform(shards)
        reference = preprocessing.StandardScaler(with_mean=with_mean, with_std=with_std)
        expected = quietly(reference.fit_transform, data[NUMBERS])
        # Far from zero a mean has fewer digits after the decimal point, in scikit-learn too.
        close(scaled.to_pandas()[NUMBERS], expected, atol=1e-8)
        learned = quietly(preprocessing.StandardScaler().fit, data[NUMBERS])
        close(values(scaler.mean_), learned.mean_, atol=1e-16)
        close(values(scaler.scale_), learned.scale_, atol=0)
        close(values(scaler.n_samples_seen_), data[NUMBERS].count())
        back = scaler.inverse_transform(scaled).to_pandas()
        close(back[NUMBERS], data[NUMBERS])
        assert back["name"].tolist() == data["name"].tolist()

    @FEW
    @given(data=frames, where=cuts, low=st.sampled_from([0.0, -1.0, 0.25]), width=st.sampled_from([1.0, 3.0]))
    def test_min_max_scaler_equals_sklearn_however_the_rows_are_split(self, context: Context, data, where, low, width):
        shards = shards_of(data, where)
        scaler = MinMaxScaler(inputCol=NUMBERS, min=low, max=low + width)
        scaled = scaler.fit_transform(shards)
        reference = preprocessing.MinMaxScaler(feature_range=(low, low + width))
        expected = quietly(reference.fit_transform, data[NUMBERS])
        close(scaled.to_pandas()[NUMBERS], expected, atol=1e-8)
        np.testing.assert_array_equal(values(scaler.data_min_), reference.data_min_)
        np.testing.assert_array_equal(values(scaler.data_max_), reference.data_max_)
        np.testing.assert_array_equal(values(scaler.data_range_), reference.data_range_)
        close(scaler.inverse_transform(scaled).to_pandas()[NUMBERS], data[NUMBERS])

    @FEW
    @given(rows=st.integers(1, 30), where=cuts, seed=st.integers(0, 1000))
    def test_arrays_are_scaled_per_element_of_the_last_axis(self, context: Context, rows, where, seed):
        rng = np.random.default_rng(seed)
        cube = rng.normal(size=(rows, 4, 3)) * [1, 100, 0.01] + [0, 5, -5]
        cube[rng.random(cube.shape) < 0.1] = np.nan
        arrays = {"one": rng.normal(size=rows), "cube": cube, "small": rng.normal(size=(rows, 2)).astype("f4")}
        shards = dicts_of(arrays, where)
        for ours, reference in (
            (StandardScaler(inputCol=list(arrays)), preprocessing.StandardScaler()),
            (MinMaxScaler(inputCol=list(arrays)), preprocessing.MinMaxScaler()),
        ):
            scaled = ours.fit_transform(shards)
            result, back = scaled.to_numpy(), ours.inverse_transform(scaled).to_numpy()
            close(result["one"], reference.fit_transform(arrays["one"][:, None])[:, 0])
            close(result["cube"], quietly(reference.fit_transform, cube.reshape(-1, 3)).reshape(cube.shape))
            close(back["cube"], cube)
            assert result["small"].dtype == np.float32
            wide = reference.fit_transform(arrays["small"].astype("f8"))
            np.testing.assert_allclose(result["small"], wide, rtol=1e-5, atol=1e-6)

    def test_digits_survive_a_mean_far_from_zero(self, local: Context):
        data = np.random.default_rng(0).normal(size=1000) * 1e-3
        shards = dicts_of({"x": data + 1e9}, where=(0.0, 0.013, 0.9))
        # Near 1e9 floats are 1.2e-7 apart, so the expected deviation is that of the values as stored.
        assert StandardScaler(inputCol="x").fit(shards).scale_ == pytest.approx(np.std((data + 1e9) - 1e9), rel=1e-9)

    def test_minimum_and_maximum_are_exact(self, local: Context):
        data = np.random.default_rng(0).normal(size=1000) * 0.1 + 1e5
        result = MinMaxScaler(inputCol="x").fit_transform(dicts_of({"x": data})).to_numpy()["x"]
        assert (result.min(), result.max()) == (0.0, 1.0)

    def test_output_columns_keep_the_inputs_and_can_be_inverted(self, context: Context):
        data = frame()
        scaler = StandardScaler(inputCol=["plain", "gap"], outputCol=["a", "b"])
        scaled = scaler.fit_transform(shards_of(data))
        result = scaled.to_pandas()
        pd.testing.assert_frame_equal(result[list(data.columns)], data)
        close(result["b"], (data["gap"] - data["gap"].mean()) / data["gap"].std(ddof=0))
        only = scaler.inverse_transform(scaled.select(["a", "b"])).to_pandas()
        close(only[["plain", "gap"]], data[["plain", "gap"]])
        with pytest.raises(TransformError, match="outputCol='a' is not in the data"):
            scaler.inverse_transform(shards_of(data)).collect()

    def test_one_name_gives_plain_values_and_a_list_a_dict(self, local: Context):
        shards = dicts_of({"x": np.arange(5.0), "m": np.ones((5, 2))})
        assert StandardScaler(inputCol="x").fit(shards).mean_ == 2.0
        assert StandardScaler(inputCol=["x"]).fit(shards).mean_ == {"x": 2.0}
        assert MinMaxScaler(inputCol="m").fit(shards).data_max_.tolist() == [1.0, 1.0]

    def test_missing_values_of_any_type_are_ignored_and_stay_missing(self, local: Context):
        decimals = [decimal.Decimal("1.5"), None, decimal.Decimal("3.5")]
        data = pd.DataFrame(
            {
                "nullable": pd.array([1, None, 3], "Int64"),
                "object": pd.Series([1, None, 3.0], dtype=object),
                "decimal": pd.Series(decimals, dtype=object),
                "nothing": np.nan,
                "flag": [True, False, True],
            }
        )
        shards = XShards.from_pandas(data, 3)
        result = MinMaxScaler(inputCol=list(data.columns)).fit_transform(shards).to_pandas()
        for name in ("nullable", "object", "decimal"):
            np.testing.assert_array_equal(result[name], [0.0, np.nan, 1.0])
        assert result["nothing"].isna().all()
        assert result["flag"].tolist() == [1.0, 0.0, 1.0]

    def test_a_later_fit_does_not_change_an_earlier_transform(self, local: Context):
        shards, scaler = dicts_of({"x": np.arange(4.0)}), MinMaxScaler(inputCol="x")
        lazy = scaler.fit_transform(shards)
        scaler.fit(dicts_of({"x": np.arange(40.0)}))
        assert lazy.to_numpy()["x"].max() == 1.0


class TestStringIndexer:
    @FEW
    @given(data=frames, where=cuts)
    def test_labels_equal_value_counts_however_the_rows_are_split(self, context: Context, data, where):
        indexer = StringIndexer(inputCol=["name", "code"], outputCol=["n", "c"])
        result = indexer.fit_transform(shards_of(data, where)).to_pandas()
        for name, target in (("name", "n"), ("code", "c")):
            counts = data[name].value_counts().sort_index().sort_values(ascending=False, kind="stable")
            assert indexer.labels_[name] == counts.index.tolist()
            assert result[target].dtype == np.int64
            assert [indexer.labels_[name][number] for number in result[target]] == data[name].tolist()

    @FEW
    @given(data=frames, where=cuts)
    def test_dicts_of_arrays_of_any_shape_are_indexed(self, context: Context, data, where):
        names = data["name"].to_numpy().astype(str)
        pairs = np.stack([names, names[::-1]], axis=1)
        shards = dicts_of({"name": names, "pair": pairs}, where)
        indexer = StringIndexer(inputCol=["name", "pair"])
        result = indexer.fit_transform(shards).to_numpy()
        assert indexer.labels_["name"] == indexer.labels_["pair"]
        labels = np.array(indexer.labels_["pair"])
        np.testing.assert_array_equal(labels[result["pair"]], pairs)
        np.testing.assert_array_equal(labels[result["name"]], names)

    def test_unseen_and_missing_labels_are_refused_kept_or_skipped(self, context: Context):
        training = XShards.from_pandas(pd.DataFrame({"name": ["ann", "bob", "bob"]}), 2)
        data = pd.DataFrame({"name": ["ann", "bbo", None, "bob"], "row": range(4)})
        shards = XShards.from_pandas(data, 2)
        indexer = StringIndexer(inputCol="name").fit(training)
        with pytest.raises(TransformError, match=r"label 'bbo' in column 'name' was not seen.*Did you mean 'bob'"):
            indexer.transform(XShards.from_pandas(data.iloc[:2], 2)).collect()
        with pytest.raises(TransformError, match="shard 1: DataError: Column 'name' has a missing label"):
            indexer.transform(XShards.from_pandas(data.iloc[[0, 2]], 2)).collect()
        with_keep = StringIndexer(inputCol="name", handle_invalid="keep").fit(training).transform(shards).to_pandas()
        assert with_keep["name"].tolist() == [1, 2, 2, 0]
        with_skip = StringIndexer(inputCol="name", handle_invalid="skip").fit(training).transform(shards).to_pandas()
        assert with_skip.to_dict("list") == {"name": [1, 0], "row": [0, 3]}

    def test_skip_drops_whole_rows_of_arrays_and_empty_shards_stay(self, local: Context):
        indexer = StringIndexer(inputCol="pair", handle_invalid="skip")
        indexer.fit(XShards.partition({"pair": np.array([["a", "b"]])}))
        shards = dicts_of({"pair": np.array([["a", "b"], ["a", "z"], ["b", "b"]]), "row": np.arange(3)}, (0.0, 0.5))
        result = indexer.transform(shards).to_numpy()
        assert result["pair"].tolist() == [[0, 1], [1, 1]]
        assert result["row"].tolist() == [0, 2]

    def test_labels_of_different_types_are_refused(self, local: Context):
        mixed = XShards.from_pandas(pd.DataFrame({"a": pd.Series(["x", 1], dtype=object)}), 2)
        with pytest.raises(DataError, match="cannot be sorted together: int, str"):
            StringIndexer(inputCol="a").fit(mixed)
        lists = XShards.from_pandas(pd.DataFrame({"a": [[1], [2]]}), 1)
        with pytest.raises(DataError, match="cannot be labels"):
            StringIndexer(inputCol="a").fit(lists)


SCALERS = [StandardScaler, MinMaxScaler]


@pytest.mark.parametrize("make", [*SCALERS, StringIndexer])
class TestAll:
    def test_fit_is_one_pass_and_transform_is_lazy(self, context: Context, tmp_path, make):
        mark = tmp_path / "ran"

        def touch(shard):
            mark.open("a").write("x")
            return shard

        shards = shards_of(frame()).transform_shard(touch)
        transformer = make(["code", "integer"]).fit(shards)
        assert len(mark.read_text()) == 4
        later = transformer.transform(shards)
        assert len(mark.read_text()) == 4
        assert len(later.collect()) == 4
        assert len(mark.read_text()) == 8

    def test_errors_of_fit_keep_their_class(self, context: Context, make):
        shards = shards_of(frame())
        with pytest.raises(ColumnError, match=r"inputCol='cdoe' is not in the data.*Did you mean 'code'"):
            make("cdoe").fit(shards)
        with pytest.raises(ColumnError, match=r"Columns: x\. Did you mean 'x'"):
            make("x_").fit(dicts_of({"x": np.arange(3)}))
        with pytest.raises(TransformError, match=r"shard \d: ColumnError: inputCol='code' is not in the data"):
            make("code").fit(shards).transform(shards.select("name")).collect()

    def test_use_before_fit_and_bad_arguments_are_refused(self, local: Context, make):
        shards = shards_of(frame())
        with pytest.raises(NotFittedError, match=r"is not fitted\. Call fit before transform"):
            make("code").transform(shards)
        with pytest.raises(ArgumentError, match="fit takes XShards; received a DataFrame"):
            make("code").fit(frame())
        with pytest.raises(ArgumentError, match="names no column"):
            make([]).fit(shards)
        with pytest.raises(ArgumentError, match="names a column twice"):
            make(["code", "code"]).fit(shards)
        uneven = make(["code", "integer"])
        uneven.outputCol = "one"
        with pytest.raises(ArgumentError, match="Give each input column one output column"):
            uneven.fit(shards)

    def test_unusable_shards_are_refused(self, local: Context, make):
        with pytest.raises(DataError, match="have no rows"):
            make("code").fit(shards_of(frame().iloc[:0]))
        with pytest.raises(DataError, match="this shard is a ndarray"):
            make("x").fit(XShards.partition(np.arange(4)))
        with pytest.raises(DataError, match="Column 'x' is a list"):
            make("x").fit(XShards.partition({"x": [np.arange(4), np.arange(4)]}))


@pytest.mark.parametrize("make", SCALERS)
def test_scalers_refuse_columns_that_are_not_numeric(context: Context, make):
    with pytest.raises(DataError, match="Column 'name' is not numeric: its dtype is"):
        make("name").fit(shards_of(frame()))
    with pytest.raises(DataError, match="Column 't' is not numeric: its dtype is <U1"):
        make("t").fit(XShards.partition({"t": np.array(["a", "b"])}))
    with pytest.raises(DataError, match="Column 'x' has infinite values"):
        make("x").fit(XShards.partition({"x": np.array([1.0, np.inf])}))
    with pytest.raises(NotFittedError, match="Call fit before inverse_transform"):
        make("x").inverse_transform(XShards.partition({"x": np.arange(3)}))
    uneven = XShards.partition(np.arange(1, 3), 2).transform_shard(lambda shard: {"x": np.ones((1, shard[0]))})
    with pytest.raises(DataError, match="last axes of different lengths"):
        make("x").fit(uneven)


def test_bad_settings_are_refused(local: Context):
    shards = shards_of(frame())
    with pytest.raises(ArgumentError, match=r"min=2.0 is not below max=1.0"):
        MinMaxScaler(inputCol="code", min=2.0).fit(shards)
    with pytest.raises(ArgumentError, match=r"handle_invalid='skpi': expected one of.*Did you mean 'skip'"):
        StringIndexer(inputCol="code", handle_invalid="skpi").fit(shards)
