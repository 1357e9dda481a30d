"""Keras training features in Orca: sample weights, custom steps, several inputs, mixed precision, embeddings."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from orca import Estimator
from orca.context import Context
from tests.conformance.keras_models import estimator, model_creator, same_weights
from tests.conformance.models import global_order, make_data


def data(rows=60):
    x, y = make_data(rows)
    return x, y.astype("f4")


@pytest.mark.parametrize("backend", ["multiworker", "parameter_server", "mirrored"])
def test_sample_and_class_weights_match_keras(local: Context, backend):
    x, y = data(48)
    weights = np.linspace(0.1, 2, 48).astype("f4")
    est = estimator(backend, 2)
    est.fit(
        x,
        y,
        epochs=2,
        batch_size=48,
        sample_weight=weights,
        class_weight={0: 0.5, 1: 2.0},
        clip_norm=0.5,
        shuffle=False,
    )
    keras.utils.set_random_seed(3)
    alone = model_creator({})
    alone.optimizer.global_clipnorm = 0.5
    by_class = np.where(y == 1, 2.0, 0.5).astype("f4")
    alone.fit(x, y, epochs=2, batch_size=48, sample_weight=weights * by_class, shuffle=False, verbose=0)
    same_weights(est.get_model(), alone)


def test_steps_per_epoch_validation_options_and_history(local: Context):
    x, y = data(64)
    est = estimator("multiworker", 2)
    history = est.fit(
        x,
        y,
        epochs=4,
        batch_size=16,
        steps_per_epoch=3,
        validation_data=(x, y),
        validation_steps=2,
        validation_freq=2,
    )
    assert history["rows"] == [48] * 4
    assert [value is not None for value in history["val_loss"]] == [False, True, False, True]
    alone = est.get_model().evaluate(x[:32], y[:32], verbose=0, return_dict=True)
    assert history[-1]["val_auc"] == pytest.approx(alone["auc"], rel=1e-5)
    assert history.params == {"epochs": 4, "steps": 3, "batch_size": 16}
    assert list(history.history)[:4] == ["epoch", "loss", "accuracy", "auc"]
    more = est.fit(x, y, epochs=6, batch_size=16, initial_epoch=4, verbose=0)
    assert more.epoch == [4, 5]
    assert est.step == 4 * 3 + 2 * 4


class Custom(keras.Model):
    """Has a custom train step, which returns a value that is not a metric."""

    def __init__(self, width=8, **more):
        super().__init__(**more)
        self.width = width
        self.first, self.last = keras.layers.Dense(width, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True)[:, 0] - y) ** 2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"squares": loss}

    def get_config(self):
        return {"width": self.width}


@pytest.mark.parametrize("backend", ["multiworker", "mirrored", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_subclassed_model_trains_with_its_custom_train_step(local: Context, backend):
    x, y = data(50)
    model = Custom(12)
    model(x[:1])
    model.compile(keras.optimizers.Adam(0.05), loss="mse")
    est = Estimator.from_keras(model=model, backend=backend, workers=2, seed=0)
    history = est.fit(x, y, epochs=15, batch_size=50)
    first = float(np.mean((model(x).numpy()[:, 0] - y) ** 2))
    assert history["squares"][0] == pytest.approx(first, rel=1e-4)
    assert history["squares"][-1] < 0.6 * first
    assert isinstance(est.get_model(), Custom)


class TwoOptimizers(keras.Model):
    """Has two optimizers, one per layer, and a loss that Keras does not track."""

    def __init__(self, **more):
        super().__init__(**more)
        self.first, self.last = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)
        self.build((None, 6))

    def build(self, shape):
        self.first.build(shape)
        self.last.build((None, 8))
        self.built = True

    def compile(self, first, last):
        super().compile(loss="mse", jit_compile=False)
        self.first_optimizer, self.last_optimizer = first, last

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data[:2]
        for layer, optimizer in ((self.first, self.first_optimizer), (self.last, self.last_optimizer)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True)[:, 0] - y) ** 2)
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return {"loss": loss}


def two_optimizers(config):
    model = TwoOptimizers()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam(0.05))
    return model


@pytest.mark.parametrize("backend", ["multiworker", "mirrored"])
def test_several_optimizers_train_and_resume_as_in_one_process(local: Context, backend, tmp_path):
    x, y = data(37)  # the last step has five rows, split unevenly across two workers
    est = Estimator.from_keras(model_creator=two_optimizers, backend=backend, workers=2, seed=3)
    history = est.fit(x, y, epochs=2, batch_size=16)
    keras.utils.set_random_seed(3)
    alone, losses = two_optimizers({}), []
    for epoch in range(4):
        order = global_order(37, 16, 3, epoch, True)
        parts = [order[low : low + 16] for low in range(0, 37, 16)]
        sums = [alone.train_on_batch(x[part], y[part], return_dict=True)["loss"] * len(part) for part in parts]
        losses.append(sum(sums) / 37)
        if epoch == 1:
            same_weights(est.get_model(), alone)
    assert history["loss"] == pytest.approx(losses[:2], rel=1e-5)  # as the step returns it
    again = Estimator.from_keras(model_creator=two_optimizers, backend=backend, workers=2, seed=3)
    again.load(est.save(str(tmp_path / "folder"))).fit(x, y, epochs=2, batch_size=16)
    same_weights(again.get_model(), alone)
    slots = again._learned.state["optimizer"]["first_optimizer"]
    assert int(slots[0]) == 12
    assert [value.shape for value in slots[2:]] == [(6, 8), (8,)]


def scaled(config):
    model = model_creator(config)
    inner = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
    model.compile(optimizer, "binary_crossentropy", jit_compile=False)
    return model


def test_loss_scaling_does_not_change_training_on_devices(local: Context):
    x, y = data(37)
    est = Estimator.from_keras(model_creator=scaled, backend="mirrored", workers=2, seed=3)
    est.fit(x, y, epochs=1, batch_size=37, shuffle=False, clip_norm=0.1)
    keras.utils.set_random_seed(3)
    alone = model_creator({})
    alone.compile(keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.1), "binary_crossentropy")
    alone.train_on_batch(x, y)
    same_weights(est.get_model(), alone)


def two_by_two(config):
    left, right = keras.Input((2,), name="left"), keras.Input((4,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    hidden = keras.layers.Dense(8, activation="tanh")(joined)
    outputs = {"side": keras.layers.Dense(2, name="side")(hidden), "total": keras.layers.Dense(1, name="total")(hidden)}
    model = keras.Model({"left": left, "right": right}, outputs)
    loss = {"side": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "total": "mse"}
    model.compile(
        keras.optimizers.Adam(0.02), loss=loss, metrics={"side": ["accuracy"]}, loss_weights={"side": 1.0, "total": 0.5}
    )
    return model


@pytest.mark.parametrize("backend", ["multiworker", "mirrored"])
def test_model_with_two_inputs_and_two_outputs_trains_and_predicts_by_name(local: Context, backend):
    rng = np.random.default_rng(0)
    x = {"left": rng.normal(size=(50, 2)).astype("f4"), "right": rng.normal(size=(50, 4)).astype("f4")}
    total = x["left"].sum(1) + x["right"].sum(1)
    y = {"side": (total > 0).astype("i8"), "total": total}
    est = Estimator.from_keras(model_creator=two_by_two, backend=backend, workers=2, seed=0)
    history = est.fit({"x": x, "y": y}, epochs=20, batch_size=25, validation_data={"x": x, "y": y})
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    alone = est.get_model().evaluate(x, y, verbose=0, return_dict=True, batch_size=50)
    assert est.evaluate({"x": x, "y": y}) == pytest.approx(alone, rel=1e-4)
    assert history[-1]["val_side_accuracy"] == pytest.approx(alone["side_accuracy"])
    output = est.predict(x)
    assert {name: value.shape for name, value in output.items()} == {"side": (50, 2), "total": (50, 1)}


@pytest.mark.parametrize("workers", [1, 2])
def test_mixed_float16_with_batch_norm_trains(local: Context, workers):
    def creator(config):
        policy = keras.mixed_precision.DTypePolicy("mixed_float16")
        layers = [
            keras.layers.Dense(8, dtype=policy),
            keras.layers.BatchNormalization(dtype=policy),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ]
        model = keras.Sequential([keras.Input((6,)), *layers])
        inner = keras.optimizers.Adam(0.05)
        model.compile(keras.optimizers.LossScaleOptimizer(inner), "binary_crossentropy", metrics=["accuracy"])
        return model

    x, y = data(100)
    est = Estimator.from_keras(model_creator=creator, workers=workers, seed=0)
    history = est.fit(x, y, epochs=20, batch_size=20)
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert est.predict(x).dtype == np.float32
    model = est.get_model()
    assert np.abs(model.layers[1].moving_mean.numpy()).sum() > 0
    assert est.evaluate(x, y)["loss"] == pytest.approx(model.evaluate(x, y, verbose=0)[0], rel=2e-2)


def test_running_statistics_of_devices_equal_those_of_ranks(local: Context):
    def creator(config):
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return model

    x, y = data(20)
    models = []
    for backend in ("multiworker", "mirrored"):
        est = Estimator.from_keras(model_creator=creator, backend=backend, workers=2, seed=3)
        est.fit(x, y, epochs=2, batch_size=10)
        models.append(est.get_model())
    same_weights(*models)


@pytest.mark.horovod
def test_compression_applies_only_to_gradients(local: Context):
    def creator(config):
        frozen = keras.layers.Dense(4, trainable=False)
        norm = keras.layers.BatchNormalization(moving_variance_initializer=keras.initializers.Constant(6e4))
        model = keras.Sequential([keras.Input((6,)), frozen, norm, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return model

    x, y = data(20)
    parts = {"model_creator": creator, "backend": "horovod", "workers": 2, "seed": 3, "compression": "fp16"}
    est = Estimator.from_keras(**parts)
    first = est.get_model().get_weights()
    est.fit(x, y, epochs=1, batch_size=10)
    model = est.get_model()
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), first[0])
    # The sum of two of these overflows float16.
    np.testing.assert_allclose(model.layers[1].moving_variance.numpy(), 6e4 * 0.99**2, rtol=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
def test_jit_compile_does_not_change_results(local: Context, workers):
    def creator(config):
        model = model_creator(config)
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"], jit_compile=True)
        return model

    x, y = data(40)
    est = Estimator.from_keras(model_creator=creator, workers=workers, seed=3)
    est.fit(x, y, epochs=2, batch_size=16)
    plain = Estimator.from_keras(
        model_creator=model_creator,
        compile_args_creator=lambda config: {"optimizer": keras.optimizers.SGD(0.1), "loss": "binary_crossentropy"},
        workers=1,
        seed=3,
    )
    plain.fit(x, y, epochs=2, batch_size=16)
    same_weights(est.get_model(), plain.get_model())


def test_unbuilt_model_infers_its_shapes_from_the_data(local: Context, tmp_path):
    def creator(config):
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    x, y = data(20)
    est = Estimator.from_keras(model_creator=creator, workers=2, seed=0)
    est.fit(x, y, epochs=2, batch_size=8)
    est.fit(x, y, epochs=1, batch_size=8)
    assert est.predict(x).shape == (20, 1)
    np.testing.assert_allclose(est.get_model().predict(x, verbose=0), est.predict(x), rtol=1e-4, atol=1e-6)
    again = Estimator.from_keras(model_creator=creator, workers=2, seed=0).load(est.save(str(tmp_path / "folder")))
    np.testing.assert_allclose(again.get_model().predict(x, verbose=0), est.predict(x), rtol=1e-4, atol=1e-6)
    est.save(str(tmp_path / "model.keras"))
    assert os.path.exists(est.export("savedmodel", str(tmp_path / "served")))


def test_weight_names_are_the_same_in_warm_workers(local: Context):
    names = []
    for _ in range(2):  # the second time in the same, warm processes
        est = Estimator.from_keras(model_creator=embedding, config={"optimizer": "SGD"}, workers=2, seed=0)
        est.fit(np.zeros((8, 2), "i4"), np.zeros(8, "f4"), batch_size=4)
        names.append(list(est.get_state_dict()))
    assert names[0] == names[1]
    assert names[0][0].startswith("sequential/")


def embedding(config):
    layers = [keras.layers.Embedding(20, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,), dtype="int32"), *layers])
    model.compile(getattr(keras.optimizers, config["optimizer"])(0.05), "mse")
    return model


@pytest.mark.parametrize("backend", ["multiworker", "mirrored"])
def test_sparse_gradients_match_one_process(local: Context, backend):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 20, (32, 2)).astype("i4"), rng.normal(size=32).astype("f4")

    def fitted(workers, optimizer):
        config = {"optimizer": optimizer}
        est = Estimator.from_keras(model_creator=embedding, config=config, backend=backend, workers=workers, seed=3)
        est.fit(x, y, epochs=2, batch_size=32, shuffle=False)
        return est.get_model()

    keras.utils.set_random_seed(3)
    alone = embedding({"optimizer": "SGD"})
    alone.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0)
    same_weights(fitted(2, "SGD"), alone)
    same_weights(fitted(2, "Adam"), fitted(1, "Adam"))


ON_TORCH = """
import keras, numpy as np
from orca import Estimator, init_orca_context
from orca.errors import ArgumentError
from tests.conformance.keras_models import model_creator
if __name__ == "__main__":
    init_orca_context(cores=2)
    x = np.random.default_rng(0).normal(size=(40, 6)).astype("f4")
    y = (x[:, 0] > 0).astype("f4")
    estimators = [Estimator.from_keras(model_creator=model_creator, workers=w, seed=0) for w in (1, 2)]
    losses = [est.fit(x, y, epochs=3, batch_size=16)["loss"] for est in estimators]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(estimators[0].predict(x), estimators[1].predict(x), rtol=1e-4, atol=1e-6)
    try:
        Estimator.from_keras(model_creator=model_creator, backend="horovod")
    except ArgumentError as error:
        print(keras.backend.backend(), error)
"""


def test_keras_on_torch_trains_over_a_torch_process_group(tmp_path):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-c", ON_TORCH],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "torch Keras runs on torch here; backend='horovod' needs it on TensorFlow" in done.stdout
