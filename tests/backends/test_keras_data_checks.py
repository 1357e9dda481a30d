"""What Keras models cannot take as it is, is refused on the driver with row and value."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from orca import Estimator, WorkerError, XShards
from orca.backends.keras.checking import label_rules
from orca.context import Context
from orca.errors import ArgumentError, DataError
from tests.backends.test_keras import two_by_two

ROWS = 20
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")
Y = np.arange(ROWS) % 3


def model(loss="sparse_categorical_crossentropy", units=3, activation="softmax"):
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation=activation)])
    made.compile(optimizer="sgd", loss=loss)
    return made


def changed(array, row, value, dtype=None):
    array = np.array(array, dtype or array.dtype)
    array[row] = value
    return array


def refused(context: Context, call, *words: str, kind: type[Exception] = DataError) -> None:
    with pytest.raises(kind) as caught:
        call()
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert not any(gang.running for gang in context._gangs._gangs.values()), "a rank was started"


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.SparseCategoricalCrossentropy(),
        keras.losses.sparse_categorical_crossentropy,
    ],
)
def test_classes_are_checked_on_the_driver(local: Context, loss):
    est = Estimator.from_keras(model=model(loss))
    refused(local, lambda: est.fit(X, changed(Y, 4, 1.5, "f4")), "1.5", "row 4", "whole")
    refused(local, lambda: est.fit(X, changed(Y, 4, 7)), "class 7", "row 4", "3 classes, 0 to 2")
    refused(local, lambda: est.evaluate(X, changed(Y, 4, -1)), "class -1", "row 4")
    assert est.fit(X, Y.astype("f4"), batch_size=10)["rows"] == [ROWS]


def test_features_are_checked_on_the_driver(local: Context):
    est = Estimator.from_keras(model=model())
    refused(local, lambda: est.fit(X[:, :3], Y), "(3,)", "expects (4,)")
    refused(local, lambda: est.predict(X[:, :3]), "(3,)", "expects (4,)")
    refused(local, lambda: est.fit(np.full((ROWS, 4), "red"), Y), "'red'", "row 0", "StringIndexer")
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "d": "red", "label": Y})
    fit = lambda: est.fit(frame, feature_cols=["a", "b", "c", "d"], label_cols="label")  # noqa: E731
    refused(local, fit, "'d'", "'red'", "row 0")
    predict = lambda names: est.predict(frame, feature_cols=["a", "b", "c"], output_cols=names)  # noqa: E731
    refused(local, lambda: predict(["p", "q"]), "(3,)", "expects (4,)")
    numbers = frame.assign(d=0.0)
    call = lambda: est.predict(numbers, feature_cols=["a", "b", "c", "d"], output_cols=["p", "q"])  # noqa: E731
    refused(local, call, "1 output", kind=ArgumentError)


def test_a_class_that_only_the_rank_can_refuse_has_its_row(local: Context):
    class Made(keras.Model):
        def __init__(self):
            super().__init__()
            self.body = keras.layers.Dense(3)

        def call(self, x):
            return self.body(x)

    def creator(config):
        made = Made()
        made.compile(
            optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
        )
        return made

    shards = XShards.partition({"x": X, "y": changed(Y, 13, 7)}, 3)
    with pytest.raises(WorkerError, match=r"class 7 in row 13; the model has 3 classes, 0 to 2"):
        Estimator.from_keras(model_creator=creator).fit(shards, batch_size=10)
    with pytest.raises(WorkerError, match=r"class 7 in row 13; the model has 3 classes, 0 to 2"):
        Estimator.from_keras(model=model()).fit(shards, batch_size=10)


def test_a_class_in_a_pipeline_is_refused_on_the_rank_that_reads_it(local: Context):
    dataset = tf.data.Dataset.from_tensor_slices((X, changed(Y, 14, 7))).batch(6)
    with pytest.raises(WorkerError, match=r"class 7 in row 14; the model has 3 classes, 0 to 2"):
        Estimator.from_keras(model=model()).fit(dataset)


def test_labels_that_are_no_probabilities_give_a_warning(local: Context, caplog):
    est = Estimator.from_keras(model=model("binary_crossentropy", 1, "sigmoid"))
    with caplog.at_level(logging.WARNING, "orca"):
        est.fit(X, changed(np.arange(ROWS) % 2, 6, 7, "f4"), batch_size=10)
    assert [record.getMessage() for record in caplog.records if "7.0 in row 6" in record.getMessage()]


def test_text_reaches_models_that_take_it(local: Context):
    words = np.array(["red", "green"] * 10)
    lookup = keras.layers.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")
    made = keras.Sequential([keras.Input((1,), dtype="string"), lookup, keras.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")
    est = Estimator.from_keras(model=made)
    assert est.fit(words[:, None], np.zeros(ROWS), batch_size=10)["rows"] == [ROWS]


def test_rules_of_several_outputs():
    rules = label_rules(two_by_two({}))
    assert set(rules) <= {"0", "1", "side", "total"}
    assert all(rules[str(number)] == rules[name] for number, name in enumerate(("side", "total")) if name in rules)
    assert label_rules(model("mse")) == {}
