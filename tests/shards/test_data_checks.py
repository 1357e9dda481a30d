"""Data is never changed silently: what a model cannot take as it is, is refused with argument, row and value.

What the driver can know is reported before a rank starts.
"""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from orca import WorkerError, XShards
from orca.context import Context
from orca.errors import DataError, TransformError
from orca.shards.checks import LabelRules, check_array, check_weights
from orca.shards.feed import InMemory, Rows
from orca.shards.tree import as_arrays
from tests.shards.refusing import NAMES, ROWS, X, Y, changed, estimator, frame, refused, regression

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
        assert LabelRules("l", classes=True).largest(np.array([1.0, 5.0, 2.0]), 10) == (5, 11, 0)


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
