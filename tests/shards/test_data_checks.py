"""Data is never changed silently: what a model cannot take as it is, is refused with argument, row and value.

What the driver can know is reported before a rank starts.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from orca import Estimator, WorkerError, XShards
from orca.context import Context
from orca.errors import ArgumentError, ColumnError, DataError, TransformError
from orca.runs import fit_run
from orca.shards.adapters import batches as stream
from orca.shards.checks import LabelRules, check_array, check_weights
from orca.shards.column_types import problems, spark_problems
from orca.shards.columns import assemble, flat
from orca.shards.feed import InMemory, Rows
from orca.shards.tree import as_arrays

ROWS = 20
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")
Y = np.arange(ROWS) % 3
NAMES = ["a", "b", "c", "d"]


def estimator(model=None, loss=None, **more) -> Estimator:
    options = {"optimizer": torch.optim.SGD, "config": {"lr": 0.01}, "workers": 1, "seed": 1, **more}
    return Estimator.from_torch(model=model or nn.Linear(4, 3), loss=loss or nn.CrossEntropyLoss(), **options)


def regression(model=None, **more) -> Estimator:
    return estimator(model or nn.Linear(4, 1), nn.MSELoss(), **more)


def changed(array, row, value, dtype=None):
    array = np.array(array, dtype or array.dtype)
    array[row] = value
    return array


def frame(**columns) -> pd.DataFrame:
    return pd.DataFrame({**dict(zip(NAMES, X.T, strict=True)), "label": Y, **columns})


def runs(context: Context) -> bool:
    """Whether some rank runs."""
    return any(gang.running for gang in context._gangs._gangs.values())


def refused(context: Context, call, *words: str, kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is kind, text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    assert len(text) < 600, text
    assert not runs(context), "a rank was started"
    return text


MASKED = np.ma.masked_array(X, mask=np.zeros(X.shape, bool))
MASKED[7, 2] = np.ma.masked
MASKED_LABELS = np.ma.masked_array(Y, mask=np.arange(ROWS) == 5)


class TestMasks:
    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda est: est.fit(MASKED, Y), ("x of data=", "1 of 80", "row 7", ".filled(")),
            (lambda est: est.fit({"x": MASKED, "y": Y}), ("x of data=", "1 of 80", "row 7")),
            (lambda est: est.fit((MASKED, Y)), ("x of data=", "1 of 80")),
            (lambda est: est.fit({"x": {"input": MASKED}, "y": Y}), ("x of data=.input", "1 of 80")),
            (lambda est: est.fit(X, MASKED_LABELS), ("y of data=", "1 of 20", "row 5")),
            (lambda est: est.fit(frame()[NAMES], MASKED_LABELS), ("y", "1 of 20", "row 5")),
            (lambda est: est.fit(X, Y, sample_weight=np.ma.masked_equal(np.arange(20.0), 3)), ("1 of 20", "row 3")),
            (lambda est: est.fit(X, Y, validation_data=(MASKED, Y)), ("x of validation_data=", "row 7")),
            (lambda est: est.evaluate(MASKED, Y), ("x of data=", "row 7")),
            (lambda est: est.predict(MASKED), ("x of data=", "row 7")),
            (lambda est: XShards.partition({"x": MASKED, "y": Y}, 2), ("x is a masked", "row 7")),
            (lambda est: XShards.from_shards([{"x": MASKED, "y": Y}]), ("x is a masked", "row 7")),
        ],
    )
    def test_masked_values_are_refused(self, local: Context, call, words):
        refused(local, lambda: call(estimator()), *words)

    def test_a_masked_array_without_masked_values_is_an_array(self, local: Context):
        plain = np.ma.masked_array(X)
        assert type(as_arrays(plain)) is np.ndarray
        assert estimator().fit(plain, Y, batch_size=10)["rows"] == [ROWS]

    def test_masks_that_a_function_on_shards_makes_are_refused(self, local: Context):
        shards = XShards.partition({"x": X, "y": Y}, 2).transform_shard(
            lambda shard: {"x": np.ma.masked_greater(shard["x"], 0), "y": shard["y"]}
        )
        with pytest.raises((DataError, WorkerError), match="x is a masked array with"):
            estimator().fit(shards, batch_size=10)
        with pytest.raises((DataError, TransformError), match="masked array with"):
            estimator().predict(shards).collect()
        with pytest.raises(DataError, match="x is a masked array"):
            Rows([InMemory({"x": MASKED})])


class TestLabels:
    @pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
    @pytest.mark.parametrize("model", [nn.Linear(4, 3), lambda config: nn.Linear(4, 3)])
    def test_fractional_classes_are_refused(self, local: Context, dtype, model):
        labels = changed(Y, 4, 1.5, dtype)
        words = ("y of data=", "1.5", "row 4", "CrossEntropyLoss", "whole")
        refused(local, lambda: estimator(model).fit(X, labels), *words)
        refused(local, lambda: estimator(model).evaluate(X, labels), *words)
        nll = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))
        refused(local, lambda: estimator(nll, nn.NLLLoss()).fit(X, labels), "1.5", "row 4", "NLLLoss")

    def test_labels_of_a_column_are_named_after_it(self, local: Context):
        data = frame(label=changed(Y, 4, 1.5, "f8"))
        for kind in (data, pa.Table.from_pandas(data)):
            call = lambda kind=kind: estimator().fit(kind, feature_cols=NAMES, label_cols="label")  # noqa: E731
            refused(local, call, "Column 'label' of data=", "1.5", "row 4")

    def test_nan_is_no_class(self, local: Context):
        refused(local, lambda: estimator().fit(X, changed(Y, 9, np.nan, "f8")), "nan", "row 9")

    @pytest.mark.parametrize("labels", [Y.astype("f4"), Y.astype("f8"), Y.astype("u1"), Y[:, None], Y > 1])
    def test_whole_classes_of_any_dtype_train_alike(self, local: Context, labels):
        est, plain = estimator(nn.Linear(4, 3)), estimator(nn.Linear(4, 3))
        torch.manual_seed(3)
        for one, y in ((est, labels), (plain, np.asarray(labels).reshape(-1).astype("i8"))):
            one.spec.model.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)})
            one.fit(X, y, batch_size=10)
        torch.testing.assert_close(est.get_state_dict()["weight"], plain.get_state_dict()["weight"], rtol=0, atol=0)

    def test_a_class_that_the_model_lacks_is_refused_on_the_driver(self, local: Context):
        words = ("y of data=", "class 7", "row 11", "3 classes, 0 to 2")
        refused(local, lambda: estimator().fit(X, changed(Y, 11, 7)), *words)
        refused(local, lambda: estimator().evaluate(X, changed(Y, 11, 7)), *words)
        refused(local, lambda: estimator().fit((X, changed(Y, 11, 7))), *words)
        refused(local, lambda: estimator().fit(X, Y, validation_data=(X, changed(Y, 11, 7))), "validation_data=", "7")
        loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(changed(Y, 11, 7))), batch_size=5)
        refused(local, lambda: estimator().fit(loader), *words)
        reader = pa.Table.from_pandas(frame(label=changed(Y, 11, 7))).to_reader(max_chunksize=4)
        call = lambda: estimator().fit(reader, feature_cols=NAMES, label_cols="label")  # noqa: E731
        refused(local, call, "Column 'label'", "class 7", "row 11", "3 classes")
        refused(local, lambda: estimator().fit(X, changed(Y, 3, -2)), "class -2", "row 3", "from 0")
        refused(local, lambda: estimator().fit(X, Y + 1), "class 3", "row 2", "subtract 1")

    def test_ignored_classes_are_no_error(self, local: Context):
        assert estimator().fit(X, changed(Y, 3, -100), batch_size=10)["rows"] == [ROWS]
        ignoring = estimator(loss=nn.CrossEntropyLoss(ignore_index=255))
        assert ignoring.fit(X, changed(Y, 3, 255), batch_size=10)["rows"] == [ROWS]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_where_only_the_output_tells_the_classes_the_rank_names_the_row(self, local: Context, workers):
        est = estimator(lambda config: nn.Linear(4, 3), workers=workers)
        for call in (
            lambda: est.fit(X, changed(Y, 13, 7), batch_size=10),
            lambda: est.evaluate(X, changed(Y, 13, 7)),
            lambda: est.fit(X, Y, validation_data=(X, changed(Y, 13, 7)), batch_size=10),
            lambda: est.fit(XShards.partition({"x": X, "y": changed(Y, 13, 7)}, 3), batch_size=10),
        ):
            with pytest.raises(WorkerError, match=r"class 7 in row 13; the model has 3 classes, 0 to 2") as caught:
                call()
            assert isinstance(caught.value.__cause__, DataError)
        assert est.fit(X, Y, batch_size=10)["rows"] == [ROWS]

    def test_labels_in_shards_are_checked_by_the_ranks(self, local: Context):
        with pytest.raises(WorkerError, match=r"1\.5 in row 14; CrossEntropyLoss expects class numbers"):
            estimator().fit(XShards.partition({"x": X, "y": changed(Y, 14, 1.5, "f8")}, 3), batch_size=10)

    def test_class_probabilities_stay_allowed(self, local: Context):
        assert estimator().fit(X, np.full((ROWS, 3), 1 / 3), batch_size=10)["rows"] == [ROWS]

    def test_labels_outside_of_probabilities(self, local: Context, caplog):
        labels = changed(np.arange(ROWS) % 2, 6, 7, "f4")
        est = estimator(nn.Linear(4, 1), nn.BCEWithLogitsLoss())
        with caplog.at_level(logging.WARNING, "orca"):
            est.fit(DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(labels)), batch_size=4))
        said = [record.getMessage() for record in caplog.records if "from 0 to 1" in record.getMessage()]
        assert len(said) == 1
        assert "7.0 in row 6" in said[0]
        assert "BCEWithLogitsLoss" in said[0]
        local.stop_gangs()
        strict = estimator(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), nn.BCELoss())
        refused(local, lambda: strict.fit(X, labels), "7.0", "row 6", "BCELoss")

    def test_complex_labels_are_refused(self, local: Context):
        refused(local, lambda: regression().fit(X, Y.astype("c8")), "Complex data not supported", "y of data=", "row 0")

    def test_rules_name_the_first_wrong_row(self):
        rules = LabelRules("the loss", classes=True, count=3, ignore=9)
        rules.check(np.array([0, 1, 2, 9]), "y")
        rules.check(np.array([[0, 1], [1, 1]]), "y")
        rules.check(np.array([[0.2, 0.8]]), "y")
        with pytest.raises(DataError, match="class 3 in row 102"):
            rules.check(np.array([0, 1, 3, 4]), "y", first_row=100)
        assert LabelRules("l", classes=True).largest(np.array([1.0, 5.0, 2.0]), 10) == (5, 11)


class TestWeights:
    @pytest.mark.parametrize(
        ("weights", "words"),
        [
            (changed(np.ones(ROWS), 8, -0.5), ("-0.5", "row 8", "at least 0")),
            (changed(np.ones(ROWS), 8, np.nan), ("nan", "row 8")),
            (changed(np.ones(ROWS), 8, np.inf), ("inf", "row 8")),
            (np.array(["x"] * ROWS), ("<U1", "'x'", "row 0")),
            (["x"] * ROWS, ("'x'", "row 0")),
            (np.zeros(ROWS), ("zero for every row",)),
            (np.ones((ROWS, 2)), ("(20, 2)", "one number per row")),
            (5, ("sample_weight=", "5", "one number per row")),
            (np.ones(ROWS, "c8"), ("complex64",)),
        ],
    )
    def test_weights_are_numbers_of_at_least_zero(self, local: Context, weights, words):
        refused(local, lambda: estimator().fit(X, Y, sample_weight=weights), "sample_weight=", *words)
        refused(local, lambda: estimator().evaluate(X, Y, sample_weight=weights), "sample_weight=")

    def test_weights_of_a_column(self, local: Context):
        for column, words in (
            (["x"] * ROWS, ("'weight'", "'x'")),
            (changed(np.ones(ROWS), 8, -2.0), ("-2.0", "row 8")),
        ):
            call = lambda column=column: estimator().fit(  # noqa: E731
                frame(weight=column), feature_cols=NAMES, label_cols="label", sample_weight="weight"
            )
            refused(local, call, *words)

    def test_weights_in_shards_are_checked_by_the_ranks(self, local: Context):
        shards = XShards.partition({"x": X, "y": Y, "w": changed(np.ones(ROWS), 15, -1.0)}, 3)
        with pytest.raises(WorkerError, match=r"-1\.0 in row 15; weights are finite"):
            estimator().fit(shards, batch_size=10)

    def test_good_weights(self):
        check_weights(None)
        check_weights(np.array([0, 1]))
        check_weights([True, False])


LARGE = changed(np.ones((ROWS, 4), "u8"), (6, 1), 2**63 + 5)
ARRAYS = {
    "uint64": (LARGE, ("9223372036854775813", "row 6", "2^63")),
    "longdouble": (X.astype("g"), ("float128", "astype('float64')")),
    "complex": (X.astype("c16"), ("Complex data not supported", "complex128")),
    "text": (X.astype("U8"), ("text", "row 0", "StringIndexer")),
    "bytes": (X.astype("S8"), ("bytes", "row 0")),
    "datetime": (np.full((ROWS, 4), np.datetime64("2024-01-02")), ("datetime64", "2024", "row 0")),
    "timedelta": (np.full((ROWS, 4), np.timedelta64(3, "s")), ("timedelta64", "row 0")),
    "structured": (np.zeros(ROWS, [("a", "f4"), ("b", "i4")]), ("records", "fields")),
    "objects": (np.array([[object()] * 4] * ROWS), ("dtype object", "row 0")),
    "wrong width": (X[:, :3], ("3 features", "(20, 3)", "takes 4")),
    "no width": (X[:, 0], ("(20,)", "takes rows of 4", "x[:, None]")),
    "two inputs": ((X, X), ("2 parts", "one input")),
}


@pytest.mark.skipif(np.dtype("g").itemsize <= 8, reason="this machine has no wider floats")
@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_the_model_cannot_take_are_refused_on_the_driver(local: Context, case):
    array, words = ARRAYS[case]
    est = regression()
    labels = Y.astype("f4")
    refused(local, lambda: est.fit(array, labels), *words)
    refused(local, lambda: est.evaluate(array, labels), *words)
    refused(local, lambda: est.predict({"x": array}), *words)
    refused(local, lambda: est.fit(X, labels, validation_data=(array, labels)), *words)
    if case not in ("objects", "two inputs", "no width", "uint64"):
        shards = XShards.partition({"x": array, "y": labels}, 2)
        refused(local, lambda: est.fit(shards), words[0])


def test_large_unsigned_integers_in_shards_are_refused_by_the_rank(local: Context):
    shards = XShards.partition({"x": LARGE, "y": Y}, 2)
    with pytest.raises(WorkerError, match="9223372036854775813"):
        estimator().fit(shards, batch_size=10)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f4", ">i8"])
def test_numbers_of_every_dtype_are_taken(dtype):
    check_array(np.ones((3, 2), dtype), "x")


def test_complex_features_reach_models_that_take_them_apart(local: Context):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 1)

        def forward(self, x):
            return self.body(torch.view_as_real(x).flatten(1))

    numbers = (X + 1j * X).astype("c8")
    assert regression(Parts).fit(numbers, Y.astype("f4"), batch_size=10)["rows"] == [ROWS]
    with pytest.raises(WorkerError, match="Complex data not supported"):
        regression(lambda config: nn.Linear(4, 1)).fit(numbers, Y.astype("f4"), batch_size=10)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch means to drop these tensors
    QUANTIZED = torch.quantize_per_tensor(torch.from_numpy(X), 0.1, 0, torch.qint8)


class TestTensors:
    def test_bfloat16_is_taken_as_float32(self, local: Context):
        tensor = torch.from_numpy(X).to(torch.bfloat16)
        array = as_arrays(tensor)
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, tensor.float().numpy())
        est = regression()
        assert est.fit(tensor, torch.zeros(ROWS, dtype=torch.bfloat16), batch_size=10)["rows"] == [ROWS]
        assert est.fit(TensorDataset(tensor, torch.zeros(ROWS)), batch_size=10)["rows"] == [ROWS]
        np.testing.assert_array_equal(est.predict(tensor), est.predict(tensor.float().numpy()))

    @pytest.mark.parametrize(
        ("tensor", "words"),
        [
            (torch.empty(ROWS, 4, device="meta"), ("meta",)),
            (torch.from_numpy(X).to_sparse(), ("sparse", "to_dense()")),
            (QUANTIZED, ("quantized", "dequantize()")),
        ],
    )
    def test_tensors_without_plain_values_are_refused(self, local: Context, tensor, words):
        refused(local, lambda: regression().fit(tensor, Y.astype("f4")), "x of data=", *words)
        refused(local, lambda: regression().predict(tensor), "x of data=", *words)


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
