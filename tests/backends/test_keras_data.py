"""Inputs and outputs of Keras estimators: data, files, exports and errors."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from orca import Estimator, WorkerError, XShards
from orca.backends.keras.checking import check_rows
from orca.backends.keras.packing import pack
from orca.context import Context
from orca.errors import ArgumentError, DataError
from orca.shards.adapters import tf_data
from tests.backends.test_keras import data, two_by_two, two_optimizers
from tests.conformance.keras_models import estimator, model_creator, train_alone


def test_every_row_of_a_tf_dataset_is_used_once(context: Context):
    x, y = data(45)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    creator = lambda config, batch_size: tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)  # noqa: E731
    curves = [
        estimator("multiworker", 2).fit(source, epochs=1, batch_size=10, shuffle=False)[0]
        for source in (dataset, creator, (x, y))
    ]
    assert {record["rows"] for record in curves} == {45}
    assert curves[0]["loss"] == curves[1]["loss"] == curves[2]["loss"]


def test_batches_of_a_tf_dataset_are_detected_through_later_transformations():
    x, y = data(8)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    batched = rows.batch(4)
    datasets = [
        rows.map(lambda x, y: (x * 2, y)),
        batched.map(lambda x, y: (x * 2, y)),
        batched.map(lambda x, y: (x * 2, y)).shuffle(2, seed=0).prefetch(1),
        rows.batch(8).map(lambda x, y: (x * 2, y)).rebatch(3),
        batched.unbatch().map(lambda x, y: (x * 2, y)),
        batched.map(lambda x, y: (x[0], y[0])),  # no longer batches
        batched.filter(lambda x, y: tf.shape(x)[0] == 4),
    ]
    shapes = [[part[0].shape for part in tf_data.batches(dataset)] for dataset in datasets]
    four = [(4, 6), (4, 6)]
    assert shapes == [[(8, 6)], four, four, [(3, 6), (3, 6), (2, 6)], [(8, 6)], [(2, 6)], four]
    with pytest.raises(DataError, match="never ends"):
        next(tf_data.batches(batched.repeat().map(lambda x, y: (x, y))))


def test_third_element_of_a_tuple_is_the_sample_weight_as_in_keras(local: Context):
    x, y = data(24)
    weights = np.linspace(0, 2, 24).astype("f4")
    triples = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(5)
    options = {"validation_data": (x, y, weights), "epochs": 1, "batch_size": 12, "shuffle": False}
    curves = [
        estimator("multiworker", 1).fit(x, y, sample_weight=weights, **options),
        estimator("multiworker", 1).fit(triples, **options),
    ]
    for name in ("loss", "val_loss"):
        assert curves[0][name] == pytest.approx(curves[1][name], rel=1e-6)
    alone = train_alone(x, y, 0, 12).evaluate(x, y, sample_weight=weights, verbose=0)[0]
    est = estimator("multiworker", 1)
    assert est.evaluate(triples)["loss"] == pytest.approx(alone, rel=1e-5)


def test_predict_accepts_creators_and_datasets_with_labels(local: Context):
    x, y = data(24)
    est = estimator("multiworker", 1)
    expected = est.predict(x)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    weighted = tf.data.Dataset.from_tensor_slices((x, y, np.ones(24, "f4"))).batch(7)

    def creator(config, batch_size):
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)

    for source in (dataset, weighted, dataset.map(lambda x, y: x), creator, lambda: x, lambda config: (x, y)):
        np.testing.assert_allclose(est.predict(source, batch_size=5), expected, rtol=1e-5)


def test_fit_and_predict_with_a_spark_dataframe(spark_session):
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


@pytest.mark.parametrize("suffix", ["h5", "hdf5", "keras"])
@pytest.mark.parametrize("backend", ["multiworker", "parameter_server"])
def test_a_model_from_a_keras_file_trains_on_with_its_optimizer(local: Context, tmp_path, suffix, backend):
    x, y = data()
    layers = [keras.Input((6,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), loss="mse")
    est, again = (Estimator.from_keras(model=model, workers=2, seed=0, backend=backend) for _ in range(2))
    est.fit(x, y, epochs=2, batch_size=16)
    again.load(est.save(str(tmp_path / f"model.{suffix}")))
    again._learned = replace(again._learned, seed=est.seed, epoch=est.epoch)
    again.fit(x, y, epochs=1, batch_size=16)
    est.fit(x, y, epochs=1, batch_size=16)
    np.testing.assert_allclose(again.predict(x), est.predict(x), rtol=1e-5)


@pytest.mark.parametrize("suffix", ["h5", "keras"])
def test_a_model_that_was_saved_before_training_trains_after_loading(local: Context, tmp_path, suffix):
    x, y = data()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse")
    path = str(tmp_path / f"new.{suffix}")
    model.save(path)
    history = Estimator.from_keras(model=model, workers=1, seed=0).load(path).fit(x, y, epochs=2, batch_size=16)
    assert history["loss"][1] < history["loss"][0]


def test_models_are_saved_and_loaded_in_every_file_format(local: Context, tmp_path):
    x, y = data()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss=own_loss)
    before = [value.copy() for value in model.get_weights()]
    est = Estimator.from_keras(model=model, workers=2, seed=0)
    est.fit(x, y, epochs=2, batch_size=16)
    for mine, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, old)  # the user's model is not changed
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
    again._learned = replace(again._learned, seed=est.seed, epoch=est.epoch)
    again.fit(x, y, epochs=1, batch_size=16)
    est.fit(x, y, epochs=1, batch_size=16)
    np.testing.assert_allclose(again.predict(x), est.predict(x), rtol=1e-5)  # the optimizer's slots were saved too
    with pytest.raises(DataError, match="does not exist"):
        est.load(str(tmp_path / "nowhere.keras"))
    with pytest.raises(WorkerError, match="do not fit"):
        estimator("multiworker", 1).load(path).evaluate(x, y)


def test_exported_models_return_the_same_predictions(local: Context, tmp_path):
    x, y = data(20)
    est = estimator("multiworker", 1)
    est.fit(x, y, batch_size=10)
    expected = est.predict(x)
    saved = tf.saved_model.load(est.export("savedmodel", str(tmp_path / "saved")))
    np.testing.assert_allclose(saved.serve(x).numpy(), expected, rtol=1e-5)
    import openvino
    from onnx.reference import ReferenceEvaluator

    compiled = openvino.Core().compile_model(
        est.export("openvino", str(tmp_path / "ir")), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-4, atol=1e-5)
    onnx = ReferenceEvaluator(est.export("onnx", str(tmp_path / "model")))
    np.testing.assert_allclose(onnx.run(None, {onnx.input_names[0]: x})[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="savedmodel"):
        est.export("saved", str(tmp_path / "x"))


def test_global_settings_of_a_creator_do_not_outlive_its_model():
    def creator(config):
        keras.config.set_dtype_policy("mixed_float16")
        keras.config.set_image_data_format("channels_first")
        return model_creator(config)

    est = Estimator.from_keras(model_creator=creator)
    assert est.get_model().layers[0].compute_dtype == "float16"
    assert keras.config.dtype_policy().name == "float32"
    assert keras.config.image_data_format() == "channels_last"


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

    def test_a_creator_that_does_not_return_a_model(self, local: Context):
        x, y = data(20)
        with pytest.raises(WorkerError, match="model_creator= returned a dict; expected a keras.Model"):
            Estimator.from_keras(model_creator=lambda config: {}).fit(x, y)
        with pytest.raises(WorkerError, match="raised DataError: .* is a path. Read it first"):
            estimator("multiworker", 1).fit(lambda config, batch_size: "rows")
        for wrong in ({}, {"model": model_creator}, {"model": "lenet"}, {"model_creator": 3}):
            with pytest.raises(ArgumentError, match="model"):
                Estimator.from_keras(**wrong)

    def test_shapes_that_do_not_match(self, local: Context):
        x, y = data(20)
        with pytest.raises(WorkerError, match=r"DataError: x of the data has rows of shape \(4,\) .* expects \(6,\)\."):
            estimator("multiworker", 2).fit(x[:, :4], y)
        with pytest.raises(WorkerError, match=r"must have the same shape\. Received: target\.shape=\(\d+, 3\)"):
            estimator("multiworker", 2).fit(x, np.zeros((20, 3), "f4"))

    def test_rows_are_checked_against_the_declared_inputs_and_outputs(self):
        model = two_by_two({})
        x = {"left": np.zeros((8, 2), "f4"), "right": np.zeros((8, 4), "f4")}
        y = {"side": np.zeros(8, "i8"), "total": np.zeros(8, "f4")}
        check_rows(model, {"x": x, "y": y})
        check_rows(model, {"x": [x["left"], x["right"]], "y": [y["side"], y["total"]]})
        with pytest.raises(DataError, match="input 'right'; its entries are left, rihgt. Did you mean 'rihgt'"):
            check_rows(model, {"x": {"left": x["left"], "rihgt": x["right"]}, "y": y})
        with pytest.raises(DataError, match=r"shape \(3,\) for the model's input 'right', which expects \(4,\)"):
            check_rows(model, {"x": {**x, "right": np.zeros((8, 3))}, "y": y})
        with pytest.raises(DataError, match="x of the data has 1 parts, but the model has 2 inputs: left, right"):
            check_rows(model, {"x": x["left"], "y": y})
        with pytest.raises(DataError, match="y of the data has 3 parts, but the model has 2 outputs"):
            check_rows(model, {"x": x, "y": [y["side"]] * 3})
        one = keras.Sequential([keras.Input((6, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
        check_rows(one, {"x": np.zeros((3, 6))})  # Keras adds the last axis itself

    def test_names_of_outputs_that_do_not_match(self, local: Context):
        x = {"left": np.zeros((8, 2), "f4"), "right": np.zeros((8, 4), "f4")}
        est = Estimator.from_keras(model_creator=two_by_two)
        with pytest.raises(
            WorkerError, match="y of the data has an entry 'sum', but the model's outputs are side, total"
        ):
            est.fit({"x": x, "y": {"side": np.zeros(8, "i8"), "sum": np.zeros(8, "f4")}}, batch_size=8)

    def test_a_model_with_a_custom_compile(self):
        model = two_optimizers({})
        with pytest.raises(ArgumentError, match=r"has a custom compile\(\).*get_compile_config.*model_creator"):
            pack(model)
        model = model_creator({})
        model.optimizer.exclude_from_weight_decay(var_names=["bias"])
        with pytest.raises(
            ArgumentError, match="excludes weights from weight decay, which Keras' file format does not store"
        ):
            pack(model)

    def test_a_model_that_cannot_be_rebuilt(self, local: Context):
        x, y = data(20)
        model = keras.Sequential([keras.Input((6,)), Unbuildable(2.0), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(ArgumentError, match=r"cannot be rebuilt on a worker.*model_creator"):
            Estimator.from_keras(model=model).fit(x, y)
        assert local.warm(1, Estimator.from_keras(model=model).backend.traits.preload) is None  # nothing was started

    def test_unsupported_options(self, local: Context):
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

        with pytest.raises(ArgumentError, match="Lamb needs whole weights"):
            Estimator.from_keras(model=lamb({}), backend="ps", workers=2).fit(x, y)
        with pytest.raises(WorkerError, match="Lamb needs whole weights"):
            Estimator.from_keras(model_creator=lamb, backend="ps", workers=2).fit(x, y)

    def test_a_loss_that_is_not_a_mean(self, local: Context):
        x, y = data(20)

        def creator(config):
            model = model_creator(config)
            model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
            return model

        with pytest.raises(WorkerError, match="reduction='sum', which workers cannot combine"):
            Estimator.from_keras(model_creator=creator, workers=2).fit(x, y)
        Estimator.from_keras(model_creator=creator, workers=1).fit(x, y)

    def test_nan_in_the_loss(self, local: Context):
        x, y = data(20)
        x[3] = np.nan
        with pytest.raises(WorkerError, match="The loss became nan"):
            estimator("multiworker", 2).fit(x, y)


def test_shards_of_dataframes_and_explain(local: Context):
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
