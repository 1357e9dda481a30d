"""Keras' own ways inside Orca: callbacks, weights of rows, custom steps, several inputs, files, clear errors."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from orca import Estimator, WorkerError, XShards
from orca.callbacks import Callback
from orca.context import Context
from orca.errors import ArgumentError, DataError
from tests.conformance.models import make_data
from tests.conformance.test_keras import estimator, model_creator, same_weights


def data(rows=60):
    x, y = make_data(rows)
    return x, y.astype("f4")


class Watch(Callback):
    """Writes down what each rank sees after every epoch."""

    def __init__(self, folder):
        self.folder = str(folder)

    def after_epoch(self, run):
        with open(f"{self.folder}/{run.rank}", "a") as file:
            file.write(f"{run.epoch} {run.learning_rate} {run.record['val_loss']} {run.reason}\n")


@pytest.mark.parametrize("backend", ["multiworker", "parameter_server"])
def test_early_stopping_and_plateaus_act_alike_on_every_rank(local: Context, backend, tmp_path):
    x, y = data()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=1e3)
    est = estimator(backend, 3, config={"lr": 1.0})
    callbacks = [plateau, stop, Watch(tmp_path)]
    history = est.fit(x, y, epochs=40, batch_size=16, validation_data=(x, 1 - y), callbacks=callbacks)
    assert 3 <= len(history) < 40
    assert "EarlyStopping" in history.stopped
    seen = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert seen[0] == seen[1] == seen[2]
    rates = [float(line.split()[1]) for line in seen[0].splitlines()]
    assert rates[-1] < rates[0] == 1.0
    assert history["learning_rate"][-1] == pytest.approx(rates[-2])  # as Keras logs it: before the change
    # What the callbacks have become is in the user's objects; the weights are those of the best epoch.
    assert stop.stopped_epoch == len(history) - 1
    best = min(history["val_loss"])
    assert stop.best == pytest.approx(best)
    assert est.evaluate(x, 1 - y)["loss"] == pytest.approx(best, rel=1e-5)


def test_files_are_written_once_and_callbacks_of_batches_are_called(local: Context, tmp_path):
    x, y = data()

    class Count(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            assert "loss" in logs
            if self.batches == 6:
                self.model.stop_training = True

    count = Count()
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / (epoch + 1))
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
    log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"))
    est = estimator("multiworker", 2)
    history = est.fit(x, y, epochs=5, batch_size=16, callbacks=[count, rates, checkpoint, log, board])
    assert len(history) == 2  # stopped in step 6 of 4 an epoch
    assert count.batches == 6
    assert history["lr"] == pytest.approx([0.1, 0.05])
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert os.listdir(tmp_path / "board")
    same_weights(keras.models.load_model(tmp_path / "2.keras"), est.get_model())


def test_backup_and_restore_goes_on_after_the_epochs_done(local: Context, tmp_path):
    x, y = data()
    whole = estimator("multiworker", 2)
    whole.fit(x, y, epochs=3, batch_size=16)

    class Break(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("the lights went out")

    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=True)
    with pytest.raises(WorkerError, match="the lights went out"):
        estimator("multiworker", 2).fit(x, y, epochs=3, batch_size=16, callbacks=[backup, Break()])
    est = estimator("multiworker", 2)
    history = est.fit(x, y, epochs=3, batch_size=16, callbacks=[backup])
    assert history["epoch"] == [3]
    same_weights(est.get_model(), whole.get_model())


@pytest.mark.parametrize("backend", ["multiworker", "parameter_server", "mirrored"])
def test_weights_of_rows_and_classes_as_in_keras(local: Context, backend):
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


def test_steps_of_an_epoch_validation_and_history(local: Context):
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
    """A step of its own, with a value that no metric stands for."""

    def __init__(self, width=8, **more):
        super().__init__(**more)
        self.width = width
        self.first, self.last = keras.layers.Dense(width, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, given):
        x, y = given[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True)[:, 0] - y) ** 2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"squares": loss}

    def get_config(self):
        return {"width": self.width}


@pytest.mark.parametrize("backend", ["multiworker", "mirrored"])
def test_a_custom_train_step_of_a_subclassed_model(local: Context, backend):
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
def test_two_inputs_and_two_outputs(local: Context, backend):
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
def test_half_precision_and_batch_norm_train(local: Context, workers):
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


@pytest.mark.parametrize("workers", [1, 2])
def test_jit_compile_changes_nothing_but_speed(local: Context, workers):
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


def test_a_model_that_learns_its_shapes_from_the_data(local: Context):
    def creator(config):
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    x, y = data(20)
    est = Estimator.from_keras(model_creator=creator, workers=2, seed=0)
    est.fit(x, y, epochs=2, batch_size=8)
    est.fit(x, y, epochs=1, batch_size=8)
    assert est.predict(x).shape == (20, 1)
    with pytest.raises(ArgumentError, match=r"keras.Input\(shape"):
        est.get_model()


def test_every_row_of_a_tf_dataset_is_seen_once(context: Context):
    x, y = data(45)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    creator = lambda config, batch_size: dataset.batch(batch_size)  # noqa: E731
    curves = [
        estimator("multiworker", 2).fit(given, epochs=1, batch_size=10)[0] for given in (dataset, creator, (x, y))
    ]
    assert {record["rows"] for record in curves} == {45}
    assert curves[0]["loss"] == curves[1]["loss"] == curves[2]["loss"]


def test_a_spark_dataframe_in_and_out(spark_session):
    from orca import init_orca_context, stop_orca_context

    init_orca_context(runtime="spark")
    try:
        x, y = data(40)
        frame = spark_session.createDataFrame([(row.tolist(), float(label)) for row, label in zip(x, y, strict=True)])
        frame = frame.toDF("features", "label").repartition(3)
        est = estimator("multiworker", 2)
        history = est.fit(frame, epochs=2, batch_size=10, feature_cols=["features"], label_cols="label")
        assert history["rows"] == [40, 40]
        rows = est.predict(frame, feature_cols=["features"]).collect()
        alone = est.get_model().predict(np.array([row.features for row in rows], "f4"), verbose=0)
        np.testing.assert_allclose(np.array([row.prediction for row in rows]), alone, rtol=1e-4, atol=1e-6)
    finally:
        stop_orca_context()


def own_loss(truth, output):
    return keras.ops.mean((truth - output) ** 2)


def test_files_of_every_kind(local: Context, tmp_path):
    x, y = data()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss=own_loss)
    before = [value.copy() for value in model.get_weights()]
    est = Estimator.from_keras(model=model, workers=2, seed=0)
    est.fit(x, y, epochs=2, batch_size=16)
    for mine, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, old)  # the user's own object stays as it was
    expected = est.predict(x)
    again = Estimator.from_keras(model=model, workers=2, seed=0)
    for name in ("model.keras", "model.h5", "only.weights.h5", "folder"):
        path = str(tmp_path / name)
        save, load = (est.save_weights, again.load_weights) if "weights" in name else (est.save, again.load)
        assert save(path) == path
        more = {"custom_objects": {"own_loss": own_loss}} if name.startswith("model") else {}
        load(path, **more)
        np.testing.assert_allclose(again.predict(x), expected, rtol=1e-6)
    again.load(str(tmp_path / "model.keras"), custom_objects={"own_loss": own_loss})
    again.seed, again._epoch = est.seed, est.epoch
    again.fit(x, y, epochs=1, batch_size=16)
    est.fit(x, y, epochs=1, batch_size=16)
    np.testing.assert_allclose(again.predict(x), est.predict(x), rtol=1e-5)  # the optimizer's slots came along
    with pytest.raises(DataError, match="does not exist"):
        est.load(str(tmp_path / "nowhere.keras"))
    with pytest.raises(WorkerError, match="do not fit"):
        estimator("multiworker", 1).load(path).evaluate(x, y)


def test_exported_models_give_the_same_numbers(local: Context, tmp_path):
    x, y = data(20)
    est = estimator("multiworker", 1)
    est.fit(x, y, batch_size=10)
    expected = est.predict(x)
    saved = tf.saved_model.load(est.export("savedmodel", str(tmp_path / "saved")))
    np.testing.assert_allclose(saved.serve(x).numpy(), expected, rtol=1e-5)
    import openvino
    from onnx.reference import ReferenceEvaluator

    compiled = openvino.Core().compile_model(est.export("openvino", str(tmp_path / "ir")), "CPU")
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-4, atol=1e-5)
    found = ReferenceEvaluator(est.export("onnx", str(tmp_path / "model")))
    np.testing.assert_allclose(found.run(None, {found.input_names[0]: x})[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="savedmodel"):
        est.export("saved", str(tmp_path / "x"))


class Unbuildable(keras.layers.Layer):
    """Cannot be rebuilt: its argument is not in its config."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        return x * self.factor


class TestBadInput:
    def test_an_uncompiled_model(self, local: Context):
        x, y = data(20)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        with pytest.raises(ArgumentError, match="is not compiled: call model.compile"):
            Estimator.from_keras(model=model).fit(x, y)
        with pytest.raises(WorkerError, match="is not compiled"):
            Estimator.from_keras(model_creator=lambda config: keras.Sequential([keras.Input((6,))])).fit(x, y)

    def test_a_creator_of_something_else(self, local: Context):
        x, y = data(20)
        with pytest.raises(WorkerError, match="model_creator= returned a dict; expected a keras.Model"):
            Estimator.from_keras(model_creator=lambda config: {}).fit(x, y)
        with pytest.raises(DataError, match="received a str"):
            estimator("multiworker", 1).fit(lambda config, batch_size: "rows")
        for wrong in ({}, {"model": model_creator}, {"model": "lenet"}, {"model_creator": 3}):
            with pytest.raises(ArgumentError, match="model"):
                Estimator.from_keras(**wrong)

    def test_shapes_that_do_not_match(self, local: Context):
        x, y = data(20)
        with pytest.raises(WorkerError, match="(?s)shape"):
            estimator("multiworker", 2).fit(x[:, :4], y)
        with pytest.raises(WorkerError, match="(?s)shape"):
            estimator("multiworker", 2).fit(x, np.zeros((20, 3), "f4"))

    def test_names_of_outputs_that_do_not_match(self, local: Context):
        x = {"left": np.zeros((8, 2), "f4"), "right": np.zeros((8, 4), "f4")}
        est = Estimator.from_keras(model_creator=two_by_two)
        with pytest.raises(WorkerError, match="(?s)side"):
            est.fit({"x": x, "y": {"side": np.zeros(8, "i8"), "sum": np.zeros(8, "f4")}}, batch_size=8)

    def test_a_model_that_cannot_be_rebuilt(self, local: Context):
        x, y = data(20)
        model = keras.Sequential([keras.Input((6,)), Unbuildable(2.0), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(ArgumentError, match=r"cannot be rebuilt on a worker.*model_creator"):
            Estimator.from_keras(model=model).fit(x, y)
        assert local.warm(1, Estimator.from_keras(model=model).backend.preload) is None  # nothing was started

    def test_options_that_do_not_belong(self, local: Context):
        x, y = data(20)
        with pytest.raises(ArgumentError, match="gradient_accumulation_steps"):
            estimator("multiworker", 1).fit(x, y, accumulate=2)
        with pytest.raises(ArgumentError, match="not an option of backend='multiworker'"):
            estimator("multiworker", 1, staleness=3)
        with pytest.raises(ArgumentError, match="Known: horovod, mirrored, multiworker, parameter_server"):
            estimator("mutliworker", 1)

        def lamb(config):
            model = model_creator(config)
            model.compile(keras.optimizers.Lamb(), "mse")
            return model

        with pytest.raises(ArgumentError, match="Lamb looks at whole weights"):
            Estimator.from_keras(model=lamb({}), backend="ps", workers=2).fit(x, y)
        with pytest.raises(WorkerError, match="Lamb looks at whole weights"):
            Estimator.from_keras(model_creator=lamb, backend="ps", workers=2).fit(x, y)

    def test_a_loss_that_is_no_mean(self, local: Context):
        x, y = data(20)

        def creator(config):
            model = model_creator(config)
            model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
            return model

        with pytest.raises(WorkerError, match="reduction='sum', which workers cannot put together"):
            Estimator.from_keras(model_creator=creator, workers=2).fit(x, y)
        Estimator.from_keras(model_creator=creator, workers=1).fit(x, y)

    def test_nan_in_the_loss(self, local: Context):
        x, y = data(20)
        x[3] = np.nan
        with pytest.raises(WorkerError, match="The loss became nan"):
            estimator("multiworker", 2).fit(x, y)


def test_shards_of_frames_and_explain(local: Context):
    import pandas as pd

    x, y = data(30)
    frame = pd.DataFrame({**{f"c{number}": x[:, number] for number in range(6)}, "label": y})
    est = estimator("mirrored", 2)
    columns = [f"c{number}" for number in range(6)]
    est.fit(XShards.partition(frame, num_shards=3), epochs=1, batch_size=10, feature_cols=columns, label_cols="label")
    out = est.predict(frame, feature_cols=columns)
    assert len(out["prediction"]) == 30
    assert "keras" in est.explain()
    assert "1 of" in est.explain()
    assert est.score(x, y) == pytest.approx(((est.predict(x)[:, 0] > 0.5) == y).mean())


def test_names_do_not_tell_what_a_worker_has_made_before(local: Context):
    names = []
    for _ in range(2):  # the second one in the same, warm processes
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
def test_gradients_that_name_only_some_rows(local: Context, backend):
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
from tests.conformance.test_keras import model_creator
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


def test_keras_on_torch_trains_over_its_own_process_group(tmp_path):
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
