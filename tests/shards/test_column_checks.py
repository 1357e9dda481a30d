"""Columns, names, outputs and streams that a model cannot take are refused with argument, row and value."""

from __future__ import annotations

import datetime
import itertools
import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from orca import WorkerError, XShards
from orca.context import Context
from orca.errors import ArgumentError, ColumnError, DataError, TransformError
from orca.runs import fit_run
from orca.shards.adapters import batches as stream
from orca.shards.column_types import problems, spark_problems
from orca.shards.columns import assemble, flat
from tests.shards.refusing import NAMES, ROWS, X, Y, changed, estimator, frame, refused, regression

DAY = datetime.datetime(2024, 1, 2)
COLUMNS = {
    "text": (["red"] * ROWS, ("text", "'red'", "row 0", "StringIndexer")),
    "string": (pd.array(["red"] * ROWS, "string"), ("text", "'red'", "row 0")),
    "category": (pd.Categorical(["red"] * ROWS), ("text", "'red'", "row 0")),
    "bytes": ([b"red"] * ROWS, ("bytes", "row 0")),
    "datetime": (pd.date_range("2024-01-02", periods=ROWS), ("points in time", "2024", "row 0")),
    "zone": (pd.date_range("2024-01-02", periods=ROWS, tz="UTC"), ("points in time", "2024")),
    "date": ([DAY.date()] * ROWS, ("points in time", "row 0")),
    "timedelta": (pd.timedelta_range("1s", periods=ROWS), ("durations", "row 0")),
    "mixed": ([1, "x"] * 10, ("several types", "int (row 0: 1)", "str (row 1: 'x')")),
    "objects": ([object()] * ROWS, ("no numbers", "row 0")),
    "sparse": (pd.arrays.SparseArray(np.zeros(ROWS)), ("sparse", "to_dense()")),
    "period": (pd.period_range("2024-01", periods=ROWS, freq="M"), ("period",)),
    "interval": (pd.interval_range(0, ROWS), ("interval",)),
    "complex": (np.ones(ROWS, "c8"), ("Complex data not supported",)),
    "uint64": (changed(np.ones(ROWS, "u8"), 6, 2**63 + 5), ("9223372036854775813", "row 6")),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_that_the_model_cannot_take_are_refused_on_the_driver(local: Context, case):
    values, words = COLUMNS[case]
    words = ("'extra'", *words)
    data, features = frame(extra=values), [*NAMES[:3], "extra"]
    est = estimator()
    refused(local, lambda: est.fit(data, feature_cols=features, label_cols="label"), *words)
    refused(local, lambda: est.fit(data, feature_cols="extra", label_cols="label"), *words)
    refused(local, lambda: est.fit(data[[*features]], Y), *words)
    refused(local, lambda: est.predict(data, feature_cols=features), *words)
    refused(local, lambda: est.fit(data, feature_cols=NAMES, label_cols="extra"), "'extra'")
    shards = XShards.partition(data, 2)
    refused(local, lambda: est.fit(shards, feature_cols=features, label_cols="label"), "'extra'")
    refused(local, lambda: est.predict(shards, feature_cols=features), "'extra'")
    if case not in ("mixed", "objects", "sparse", "complex"):
        table = pa.Table.from_pandas(data)
        refused(local, lambda: est.fit(table, feature_cols=features, label_cols="label"), "'extra'")
        refused(local, lambda: est.predict(table, feature_cols=features), "'extra'")


def test_columns_that_are_not_used_do_not_matter(local: Context):
    data = frame(extra=["red"] * ROWS, when=pd.date_range("2024-01-02", periods=ROWS), both=[1, "x"] * 10)
    est = estimator()
    assert est.fit(data, feature_cols=NAMES, label_cols="label", batch_size=10)["rows"] == [ROWS]
    assert len(est.predict(data.drop(columns="both"), feature_cols=NAMES)) == ROWS


def test_lists_of_text_and_categories_of_numbers():
    table = pa.table({"words": [["a", "b"]], "numbers": [[1.0, 2.0]], "when": [DAY]})
    assert set(problems(table)) == {"words", "when"}
    assert not problems(
        pd.DataFrame({"c": pd.Categorical([1, 2]), "v": [[1.0], [2.0]], "n": pd.array([1, 2], "Int64")})
    )
    kinds = {
        "a": "string",
        "b": "array<float>",
        "c": "vector",
        "d": "timestamp_ntz",
        "e": "struct<x:int>",
        "f": "boolean",
    }
    assert set(spark_problems(kinds)) == {"a", "d", "e"}


def test_a_matrix_of_text_and_numbers_is_refused():
    table = {"a": np.zeros(3), "b": np.array(["x", "y", "z"])}
    with pytest.raises(DataError, match=r"Column 'b' has dtype <U1, such as 'x' in row 0.*StringIndexer"):
        assemble(table, ["a", "b"], "feature_cols")


class TestNames:
    def test_duplicate_columns_are_refused_where_they_are_used(self, local: Context):
        data = frame()
        double = pd.concat([data, data[["a"]]], axis=1)
        table = pa.table([*(data[name] for name in data.columns), data["a"]], names=[*data.columns, "a"])
        for kind in (double, table, XShards.from_shards([double])):
            fit = lambda kind=kind: estimator().fit(kind, feature_cols=NAMES, label_cols="label")  # noqa: E731
            refused(local, fit, "feature_cols='a'", "2 columns")
            predict = lambda kind=kind: estimator().predict(kind, feature_cols=NAMES)  # noqa: E731
            refused(local, predict, "feature_cols='a'", "2 columns")
        refused(local, lambda: estimator().fit(double[["a", "b", "c"]], Y), "'a'", "2 columns")
        est = estimator(nn.Linear(3, 3))
        assert est.fit(double, feature_cols=NAMES[1:], label_cols="label", batch_size=10)["rows"] == [ROWS]

    def test_integers_are_names_of_columns(self, local: Context):
        numbered = pd.DataFrame(np.column_stack([X, Y]).astype("f4"))
        assert flat([0, [1, "b"], np.int64(3)]) == ["0", "1", "b", "3"]
        est = estimator()
        for data in (numbered, XShards.from_pandas(numbered, 2)):
            assert est.fit(data, feature_cols=[0, 1, 2, 3], label_cols=4, batch_size=10)["rows"] == [ROWS]
            assert est.evaluate(data, feature_cols=[0, 1, 2, 3], label_cols=[4])["loss"] > 0
            predicted = est.predict(data, feature_cols=[0, 1, 2, 3])
            predicted = predicted if isinstance(predicted, pd.DataFrame) else predicted.to_pandas()
            np.testing.assert_allclose(np.stack(list(predicted["prediction"])), est.predict(X), rtol=1e-6)
        local.stop_gangs()
        refused(local, lambda: est.fit(numbered, feature_cols=[9], label_cols=4), "'9'", kind=ColumnError)
        refused(local, lambda: est.fit(numbered, feature_cols=[1.5], label_cols=4), "1.5", kind=ArgumentError)

    def test_missing_defaults_are_explained(self, local: Context):
        data = frame()
        words = ("feature_cols=", "'features'", "does not exist", "a, b, c, d, label")
        text = refused(local, lambda: estimator().predict(data), *words, kind=ColumnError)
        assert "feature_cols='features'" not in text
        refused(local, lambda: estimator().fit(data), *words, kind=ColumnError)
        words = ("label_cols=", "'label'", "does not exist")
        refused(local, lambda: estimator().fit(data[NAMES], feature_cols=NAMES), *words, kind=ColumnError)

    def test_long_lists_of_columns_are_cut(self, local: Context):
        wide = pd.DataFrame(np.zeros((2, 3000)), columns=[f"column {number}" for number in range(3000)])
        refused(local, lambda: estimator().fit(wide, feature_cols="z", label_cols="z"), "2980 more", kind=ColumnError)

    @pytest.mark.parametrize("name", ["feature_cols", "label_cols"])
    @pytest.mark.parametrize("data", [(X, Y), {"x": X, "y": Y}, [X, Y]])
    def test_columns_of_arrays_are_refused(self, local: Context, name, data):
        if isinstance(data, dict) and name == "feature_cols":
            words, kind = ("feature_cols='a'", "is not in data="), ColumnError
        else:
            words, kind = (f"{name}='a'", "without named columns"), ArgumentError
        options = {name: "a", **({"label_cols": "y"} if kind is ColumnError else {})}
        refused(local, lambda: estimator().fit(data, **options), *words, kind=kind)
        refused(local, lambda: estimator().evaluate(data, **options), *words, kind=kind)

    def test_names_are_refused_where_predict_would_ignore_them(self, local: Context):
        words = ("without named columns",)
        refused(local, lambda: estimator().predict(X, feature_cols="a"), "feature_cols='a'", *words, kind=ArgumentError)
        refused(local, lambda: estimator().predict(X, output_cols="a"), "output_cols='a'", *words, kind=ArgumentError)
        rows = TensorDataset(torch.from_numpy(X))
        refused(local, lambda: estimator().predict(rows, output_cols="a"), *words, kind=ArgumentError)

    def test_columns_of_a_dict_of_arrays(self, local: Context):
        data = dict(zip(NAMES, X.T, strict=True))
        est = estimator()
        est.fit({**data, "label": Y}, feature_cols=NAMES, label_cols="label", batch_size=10)
        np.testing.assert_allclose(est.predict(data, feature_cols=NAMES), est.predict(X), rtol=1e-6)

    def test_validation_arrays_beside_a_frame(self, local: Context):
        history = estimator().fit(
            frame(), feature_cols=NAMES, label_cols="label", validation_data=(X, Y), batch_size=10
        )
        assert history["val_loss"][0] > 0


class TestOutputs:
    def test_an_output_never_replaces_a_feature(self, local: Context):
        words = ("output_cols=['a']", "'a' is one of the features")
        for data in (frame(), pa.Table.from_pandas(frame()), XShards.from_pandas(frame(), 2)):
            call = lambda data=data: estimator().predict(data, feature_cols=NAMES, output_cols="a")  # noqa: E731
            refused(local, call, *words, kind=ArgumentError)

    def test_another_column_is_replaced(self, local: Context):
        predicted = regression().predict(frame(prediction=0.0), feature_cols=NAMES)
        assert list(predicted.columns) == [*NAMES, "label", "prediction"]
        assert predicted["prediction"].map(len).eq(1).all()

    def test_the_number_of_names_is_checked_before_the_launch(self, local: Context):
        call = lambda: estimator().predict(frame(), feature_cols=NAMES, output_cols=["p", "q"])  # noqa: E731
        refused(local, call, "output_cols=['p', 'q']", "1 output", kind=ArgumentError)

    def test_names_of_the_model_do_not_replace_features(self, local: Context):
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 1)

            def forward(self, x):
                return {"a": self.body(x)}

        with pytest.raises(TransformError, match="output 'a' is called like a feature"):
            regression(Named).predict(frame(), feature_cols=NAMES)
        assert "p" in regression(Named).predict(frame(), feature_cols=NAMES, output_cols="p").columns

    def test_nested_outputs_become_columns(self, local: Context):
        class Nested(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 1)

            def forward(self, x):
                mean = self.body(x)
                return mean[:, 0], {"mean": mean, "both": (mean + 1, mean + 2)}

        est = regression(Nested)
        predicted = est.predict(frame(), feature_cols=NAMES)
        made = ["prediction_0", "prediction_1_mean", "prediction_1_both_0", "prediction_1_both_1"]
        assert list(predicted.columns) == [*NAMES, "label", *made]
        first, rest = est.predict(X)
        np.testing.assert_allclose(predicted["prediction_0"], first)
        np.testing.assert_allclose(np.stack(list(predicted["prediction_1_both_1"])), rest["both"][1])
        named = est.predict(frame(), feature_cols=NAMES, output_cols=["p", "q", "r", "s"])
        np.testing.assert_allclose(named["p"], first)


class TestEmpty:
    @pytest.mark.parametrize("data", [[], {}, (), {"x": []}, {"x": {}}])
    def test_nothing_at_all_is_refused(self, local: Context, data):
        refused(local, lambda: estimator().fit(data, Y), kind=DataError)
        refused(local, lambda: estimator().predict(data), "holds no array")
        refused(local, lambda: estimator().fit(data), kind=DataError)

    @pytest.mark.parametrize("labels", [{}, [], ()])
    def test_labels_without_arrays_are_refused(self, local: Context, labels):
        refused(local, lambda: estimator().fit(X, labels), "y", "holds no array")
        refused(local, lambda: estimator().evaluate(X, labels), "y", "holds no array")
        refused(local, lambda: estimator().fit(frame()[NAMES], labels), "y", "holds no array")

    def test_a_list_of_many_lists_has_a_short_message(self, local: Context):
        nested = np.random.default_rng(0).normal(size=(20_000, 4)).tolist()
        text = refused(local, lambda: estimator().fit(nested, list(range(20_000))), "x.0: 4", "np.asarray")
        assert "19997 more" in text
        uneven = [[1.0] * (index % 7 + 1) for index in range(20_000)]
        refused(local, lambda: estimator().fit(uneven, list(range(20_000))), "np.asarray")
        refused(local, lambda: estimator().predict(uneven), "np.asarray")


def test_a_nan_loss_names_the_columns_with_nan(local: Context):
    data = frame(b=changed(X[:, 1], 12, np.nan), d=changed(X[:, 3], 3, np.inf))
    with pytest.raises(WorkerError, match=r"column 'b' \(first in row 12\).*column 'd' \(first in row 3\)") as caught:
        regression(nn.Linear(4, 1)).fit(data, feature_cols=NAMES, label_cols="label", batch_size=20)
    assert "'a'" not in str(caught.value.__cause__)
    with pytest.raises(WorkerError, match=r"column 1 of the features \(first in row 12\)"):
        regression().fit(data[NAMES].to_numpy(), Y.astype("f4"), batch_size=20)
    with pytest.raises(WorkerError, match=r"the labels \(first in row 5\)"):
        regression().fit(X, changed(Y, 5, np.nan, "f4"), batch_size=20)
    with pytest.raises(WorkerError, match="The data has no nan or inf. Lower the learning rate"):
        regression(config={"lr": 1e30}).fit(X, Y.astype("f4"), batch_size=5, epochs=20)


class Endless(IterableDataset):
    """Rows without an end, or some; it writes down those that were read."""

    def __init__(self, log, limit=None):
        self.limit, self.log = limit, log

    def __iter__(self):
        for number in itertools.count() if self.limit is None else range(self.limit):
            with self.log.open("a") as file:
                file.write(".")
            yield X[number % ROWS], Y[number % ROWS]

    @property
    def read(self):
        return len(self.log.read_text())


class TestStreams:
    @pytest.mark.parametrize("load", [False, True])
    @pytest.mark.parametrize(
        ("length", "rows"),
        [({"max_steps": 5}, 40), ({"steps_per_epoch": 5, "epochs": 3, "max_steps": 7}, 56)],
    )
    def test_an_endless_dataset_is_read_as_far_as_the_steps_need(self, local: Context, tmp_path, load, length, rows):
        data = Endless(tmp_path / "log")
        history = estimator().fit(DataLoader(data, batch_size=8) if load else data, batch_size=8, **length)
        assert rows <= data.read <= rows + 8
        assert sum(history["rows"]) == rows

    def test_a_stream_that_ends_earlier_is_read_whole(self, local: Context, tmp_path):
        data = Endless(tmp_path / "log", 30)
        assert estimator().fit(data, batch_size=10, max_steps=100, epochs=2)["rows"] == [30, 30]
        assert data.read == 60

    def test_validation_reads_as_far_as_its_steps_need(self, local: Context, tmp_path):
        data = Endless(tmp_path / "log")
        history = estimator().fit(X, Y, batch_size=10, validation_data=data, validation_steps=2)
        assert history["val_loss"][0] > 0
        assert data.read == 20

    def test_an_epoch_that_may_never_end_says_so(self, local: Context, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr(fit_run, "FIRST_WARNING_SECONDS", 0.05)
        with caplog.at_level(logging.WARNING, "orca"):
            estimator().fit(Endless(tmp_path / "log", 3000), batch_size=2)
        said = [record.getMessage() for record in caplog.records if "so far" in record.getMessage()]
        assert said
        assert "Does it end? Otherwise pass steps_per_epoch= or max_steps=" in said[0]

    def test_a_prediction_says_what_is_going_on(self, local: Context, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr(stream, "FIRST_WARNING_SECONDS", 0.0)
        est = estimator()
        est.fit(X, Y, batch_size=10)
        with caplog.at_level(logging.WARNING, "orca"):
            est.predict(Endless(tmp_path / "log", 3000))
        said = [record.getMessage() for record in caplog.records if "so far" in record.getMessage()]
        assert said
        assert "1024 rows" in said[0]

    def test_a_prediction_stops_before_the_disk_is_full(self, local: Context, tmp_path, monkeypatch):
        monkeypatch.setattr(stream, "_DISK_LEFT", 1.1)
        monkeypatch.setattr(stream, "_LARGE_BYTES", 10_000)
        data, est = Endless(tmp_path / "log"), estimator()
        est.fit(X, Y, batch_size=10)
        with pytest.raises(DataError, match="Endless: after .* rows .* nearly full"):
            est.predict(data)
        assert data.read < 10_000


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 1)

    def forward(self, left, right, *rest):
        assert left.ndim == 1
        return self.body(torch.stack([left, right], 1)) + sum(value[:, None] for value in rest)


class Inputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, first, second, third):
        return self.body(first) + self.body(second) * third[:, :1]


class Rows3(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return X[index], X[index] * 2, X[index], int(Y[index])


class TestSeveralInputs:
    @pytest.mark.parametrize("load", [False, True])
    @pytest.mark.parametrize("model", [Inputs, Inputs()])
    def test_a_loader_of_features_and_a_label(self, local: Context, load, model):
        data = DataLoader(Rows3(), batch_size=10) if load else Rows3()
        est, tuples = estimator(model), ((X, X * 2, X), Y)
        est.fit(data, batch_size=10)
        same = estimator(model)
        same.fit(*tuples, batch_size=10)
        torch.testing.assert_close(est.get_state_dict(), same.get_state_dict())
        assert est.evaluate(data)["loss"] == pytest.approx(same.evaluate(*tuples)["loss"])
        np.testing.assert_allclose(est.predict(data), same.predict({"x": tuples[0]}), rtol=1e-6)

    @pytest.mark.parametrize("model", [Pair, lambda config: Pair(), Pair()])
    @pytest.mark.parametrize("count", [2, 3, 4])
    def test_columns_are_inputs_of_a_model_from_a_creator(self, local: Context, model, count):
        data = frame(label=Y.astype("f4"))
        est = regression(model)
        assert est.fit(data, feature_cols=NAMES[:count], label_cols="label", batch_size=10)["rows"] == [ROWS]
        predicted = est.predict(data, feature_cols=NAMES[:count])
        assert predicted["prediction"].map(len).eq(1).all()

    def test_columns_of_several_types_keep_them_as_inputs(self, local: Context):
        class Indexed(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.body = nn.Embedding(20, 1), nn.Linear(1, 1)

            def forward(self, index, value, scale=None):
                return self.table(index) + self.body(value[:, None])

        data = frame(number=np.arange(ROWS), label=Y.astype("f4"))
        est = regression(lambda config: Indexed())
        assert est.fit(data, feature_cols=["number", "a"], label_cols="label", batch_size=10)["rows"] == [ROWS]

    def test_looking_at_a_creator_leaves_random_numbers_alone(self, local: Context):
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        regression(lambda config: nn.Linear(4, 1)).spec.inspected_inputs()
        assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.spark
def test_types_of_a_spark_frame_are_checked_by_its_schema(spark_session, local: Context):
    data = spark_session.createDataFrame(frame(name="red", when=pd.Timestamp("2024-01-02")))
    est = estimator()
    for name, word in (("name", "text (string)"), ("when", "points in time")):
        features = [*NAMES[:3], name]
        refused(local, lambda features=features: est.predict(data, feature_cols=features), f"'{name}'", word)
        fit = lambda features=features: est.fit(data, feature_cols=features, label_cols="label")  # noqa: E731
        refused(local, fit, f"'{name}'", word)


@pytest.mark.ray
def test_types_of_a_ray_dataset_are_checked_by_its_schema(ray_cluster, local: Context):
    data = ray_cluster.data.from_pandas(frame(name="red", when=pd.Timestamp("2024-01-02")))
    est = estimator()
    for name, word in (("name", "text"), ("when", "points in time")):
        features = [*NAMES[:3], name]
        refused(local, lambda features=features: est.predict(data, feature_cols=features), f"'{name}'", word)
        fit = lambda features=features: est.fit(data, feature_cols=features, label_cols="label")  # noqa: E731
        refused(local, fit, f"'{name}'", word)
