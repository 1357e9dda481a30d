"""Models in the style of Keras 1: compile, fit, evaluate, predict; class numbers count from 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from orca import XShards, init_orca_context
from orca.bigdl.keras.layers import Dense, Dropout, Input, merge
from orca.bigdl.keras.models import Model, Sequential
from orca.bigdl.nn.layer import Model as Loader
from orca.bigdl.optim.optimizer import Adam
from orca.bigdl.util.common import RNG
from orca.context import Context
from orca.errors import ArgumentError, DataError


@pytest.fixture
def local() -> Iterator[Context]:
    """A context with as many ranks as a model uses by default: two."""
    context = init_orca_context(cores=2)
    yield context
    context.stop_gangs()


rng = np.random.default_rng(0)
X = rng.normal(size=(50, 4)).astype("f4")
CLASSES = np.argmax(X[:, :3], axis=1)


def classifier(loss="sparse_categorical_crossentropy", optimizer=None):
    RNG().set_seed(1)
    model = Sequential().add(Dense(16, activation="relu", input_shape=(4,))).add(Dropout(0.1))
    model.add(Dense(3, activation="softmax"))
    model.compile(optimizer or Adam(0.05), loss, metrics=["accuracy"])
    return model


def test_a_model_learns_and_holds_the_trained_weights(local: Context, tmp_path):
    model = classifier()
    model.set_tensorboard(str(tmp_path), "app")
    history = model.fit(X, CLASSES, batch_size=10, nb_epoch=20, validation_split=0.2)
    assert len(history) == 20
    assert history["val_accuracy"][-1] > 0.6
    loss, accuracy = model.evaluate(X, CLASSES)
    outputs = model.predict(X)
    np.testing.assert_allclose(outputs.sum(axis=1), 1, atol=1e-5)
    assert accuracy == np.mean(outputs.argmax(axis=1) == CLASSES) > 0.85
    assert loss == pytest.approx(-np.log(outputs[np.arange(50), CLASSES]).mean(), rel=1e-4)
    np.testing.assert_array_equal(model.predict_classes(X), outputs.argmax(axis=1))
    np.testing.assert_array_equal(model.predict_classes(X, zero_based_label=False), outputs.argmax(axis=1) + 1)
    assert model.get_train_summary("Loss").shape == (80, 3)
    path = str(tmp_path / "model.bigdl")
    model.save(path)
    loaded = Loader.load(path)
    np.testing.assert_allclose(loaded.predict(X), outputs, atol=1e-6)
    model.fit(X, CLASSES, batch_size=10, nb_epoch=1)
    assert model.estimator.epoch == 21


def test_labels_count_from_zero_and_others_are_refused(local: Context):
    model = classifier()
    labels = CLASSES.copy()
    labels[7] = 3
    with pytest.raises(DataError, match=r"class 3 in row 7; the model has 3 classes, 0 to 2"):
        model.fit(X, labels)
    labels[7] = -1
    with pytest.raises(DataError, match="class -1 in row 7"):
        model.fit(X, labels)


def test_a_graph_with_two_inputs_trains_from_shards(local: Context):
    left, right = Input(shape=(2,)), Input(shape=(2,))
    joined = merge([Dense(8, activation="tanh")(left), Dense(8, activation="tanh")(right)], mode="concat")
    model = Model([left, right], Dense(3, activation="softmax")(joined))
    model.compile("adam", "categorical_crossentropy", ["accuracy"])
    shards = XShards.partition({"x": [X[:, :2], X[:, 2:]], "y": np.eye(3, dtype="f4")[CLASSES]})
    model.set_gradient_clipping_by_l2_norm(1.0)
    before = model.evaluate(shards)
    model.fit(shards, batch_size=10, nb_epoch=3)
    assert model.evaluate(shards)[0] < before[0]


def test_losses_are_known_by_the_names_of_keras(local: Context):
    model = Sequential().add(Dense(2, activation="sigmoid", input_shape=(4,)))
    targets = np.abs(np.tanh(X[:, :2]))
    for loss in ("mse", "mae", "binary_crossentropy", "hinge", "squared_hinge", "kld", "poisson", "msle", "mape"):
        model.compile("rmsprop", loss)
        (value,) = model.evaluate(X, targets, batch_size=1)
        assert np.isfinite(value), loss
    model.compile("sgd", "mae")
    assert model.evaluate(X, targets)[0] == pytest.approx(np.abs(model.predict(X) - targets).mean(), rel=1e-4)


def test_wrong_arguments_are_refused(local: Context):
    model = Sequential().add(Dense(2, input_shape=(4,)))
    with pytest.raises(ArgumentError, match="not compiled"):
        model.fit(X, X[:, :2])
    with pytest.raises(ArgumentError, match="Did you mean 'adam'"):
        model.compile("adm", "mse")
    with pytest.raises(ArgumentError, match="Did you mean 'mse'"):
        model.compile("adam", "mes")
    model.compile("adam", "mse")
    with pytest.raises(ArgumentError, match="validation_split"):
        model.fit(X, X[:, :2], validation_split=1.5)
