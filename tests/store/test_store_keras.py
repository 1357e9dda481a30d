"""Keras and TensorFlow with a store: the documented flow end to end, records, virtual datasets, and trust."""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from orca import Estimator, Store
from orca.errors import ArgumentError, DataError, UntrustedError
from orca.store import virtualobj

LABELS = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
RECORDS = 10_000


@pytest.fixture(scope="module")
def flowers(tmp_path_factory: pytest.TempPathFactory):
    """A store with a MobileNetV2, an image, and what the model predicts for it."""
    keras.utils.set_random_seed(0)
    mobile_net = tf.keras.applications.MobileNetV2(
        input_shape=(192, 192, 3), include_top=False, weights=None, alpha=0.35
    )
    mobile_net.trainable = False
    model = tf.keras.Sequential([
        mobile_net,
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(len(LABELS)),
    ])  # fmt: skip
    model.compile(optimizer="adam", loss=tf.keras.losses.sparse_categorical_crossentropy, metrics=["accuracy"])
    numbers = np.random.default_rng(1)
    image = numbers.integers(0, 255, (192, 192, 3), "u1")
    # Random weights shrink the signal from layer to layer: without this all outputs would be almost 0.
    features = np.asarray(model.layers[1](mobile_net(image[None].astype("f4"), training=False)))
    kernel = numbers.normal(size=(features.shape[1], len(LABELS))) / np.linalg.norm(features)
    model.layers[2].set_weights([kernel, np.zeros(len(LABELS))])
    om = Store(tmp_path_factory.mktemp("flowers"))
    om.models.put(model, "tfkeras-flower")
    expected = model.predict(np.array([image]), verbose=0)
    assert 0.1 < np.abs(expected).max() < 10
    return om, image, expected


def test_the_model_comes_back_as_it_was_put(flowers):
    om, image, expected = flowers
    model = om.models.get("tfkeras-flower")
    np.testing.assert_allclose(model.predict(np.array([image]), verbose=0), expected, atol=1e-5)
    version = om.models.resolve("tfkeras-flower")
    assert version.signature.inputs[0].shape == (-1, 192, 192, 3)
    assert version.signature.outputs[0].shape == (-1, 5)
    assert {"keras", "openvino", "python"} <= set(version.manifest["packages"])
    assert "native/model.keras" in version.manifest["files"]


def test_the_runtime_predicts_what_the_model_predicts(flowers, context):
    om, image, expected = flowers
    result = om.runtime.model("tfkeras-flower").predict(np.array([image]))
    np.testing.assert_allclose(result, expected, atol=1e-5)
    several = om.runtime.model("tfkeras-flower", workers=2).predict(np.array([image] * 3)).get(timeout=120)
    np.testing.assert_allclose(several, np.repeat(expected, 3, axis=0), atol=1e-5)


def small(name: str = "small") -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(1)], name=name)
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def examples():
    """10,000 records with four floats, a label and an id."""
    x = np.random.default_rng(2).normal(size=(RECORDS, 4)).astype("f4")
    y = x.sum(axis=1, keepdims=True)
    feature = tf.train.Feature

    def record(number: int):
        return tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": feature(float_list=tf.train.FloatList(value=x[number])),
                    "y": feature(float_list=tf.train.FloatList(value=y[number])),
                    "id": feature(bytes_list=tf.train.BytesList(value=[f"row-{number}".encode()])),
                }
            )
        )

    return x, y, [record(number) for number in range(RECORDS)]


def test_ten_thousand_records_come_back_equal_and_train_a_model(om, local, examples):
    x, y, records = examples
    facts = om.datasets.put(iter(records), "records")
    assert (facts["rows"], facts["parts"], facts["features"]["x"]) == (RECORDS, 3, ["float32", [4]])
    assert om.datasets.get("records") == records
    arrays = om.datasets.get("records", as_="numpy")
    np.testing.assert_array_equal(arrays["x"], x)
    assert arrays["id"][-1] == b"row-9999"
    rows = list(om.datasets.get("records", as_="tf.data").take(2).as_numpy_iterator())
    np.testing.assert_array_equal(rows[1]["x"], x[1])
    om.models.put(small(), "small")
    version = (
        om.runtime.model("small")
        .fit("records", feature_cols=["x"], label_cols=["y"], batch_size=100, epochs=1, tag="trained")
        .get(timeout=150)
    )
    assert (version.number, version.manifest["parent"], version.manifest["data"]) == (2, "small@1", ["records"])
    assert version.manifest["history"][0]["rows"] == RECORDS
    assert version.manifest["position"]["step"] == 100
    result = om.runtime.model("small@trained").predict(x[:8])
    np.testing.assert_allclose(result, y[:8], atol=0.05)
    np.testing.assert_allclose(om.models.get("small@trained").predict(x[:8], verbose=0), result, atol=1e-5)


def test_a_virtual_dataset_with_a_tf_dataset_feeds_fit(om, local):
    @virtualobj
    def pairs(rows="64"):
        import numpy as np
        import tensorflow as tf

        x = np.random.default_rng(2).normal(size=(int(rows), 4)).astype("f4")
        return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))

    om.datasets.put(pairs, "pairs")
    assert isinstance(om.datasets.get("pairs"), tf.data.Dataset)
    om.models.put(small(), "small")
    call = om.runtime.model("small")
    version = call.fit("pairs{rows=320}", epochs=20, batch_size=32).get(timeout=150)
    assert version.manifest["data"] == ["pairs{rows=320}"]
    x = np.eye(4, dtype="f4")
    np.testing.assert_allclose(om.runtime.model("small").predict(x), np.ones((4, 1)), atol=0.1)
    scores = om.runtime.model("small").evaluate(x, np.ones((4, 1), "f4")).get(timeout=100)
    assert scores["mae"] < 0.1
    assert om.runtime.model("small").score(x, np.ones((4, 1), "f4")).get(timeout=100) < 1.01
    assert call.version.number == 1


def test_a_keras_estimator_comes_back_as_an_estimator(om, local):
    est = Estimator.from_keras(model=small(), seed=5, batch_size=16)
    x = np.random.default_rng(2).normal(size=(64, 4)).astype("f4")
    est.fit(x, x[:, :1], epochs=2)
    om.models.put(est, "est")
    back = om.models.get("est")
    assert (back.epoch, back.step, back.seed, back.batch_size) == (2, est.step, 5, 16)
    np.testing.assert_allclose(back.predict(x[:4]), est.predict(x[:4]), atol=1e-6)


def test_a_function_on_a_worker_makes_a_model_that_is_stored(om, local):
    def make(width):
        import keras

        return keras.Sequential([keras.Input((width,)), keras.layers.Dense(2)])

    version = om.runtime.run(make, 3, save_as="made", tag="first").get(timeout=150)
    assert (str(version), version.aliases, version.kind) == ("made@1", ("first",), "keras")
    assert om.models.get("made").predict(np.ones((1, 3)), verbose=0).shape == (1, 2)
    assert om.verify() == om.sweep() == []


def test_a_lambda_layer_runs_only_with_trust(om, tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x * 2)])
    om.models.put(model, "lambda")
    with pytest.raises(UntrustedError, match=r"lambda@1 is not loaded: it holds code \(a Lambda object\)"):
        om.models.get("lambda")
    path = tmp_path / "file.keras"
    model.save(path)
    with pytest.raises(UntrustedError, match=r"file.keras' is not loaded"):
        om.models.put(path, "file")
    assert om.models.put(path, "file", trusted=True).number == 1
    assert om.models.get("lambda", trusted=True).predict(np.ones((1, 2)), verbose=0).tolist() == [[2.0, 2.0]]
    np.testing.assert_allclose(om.runtime.model("lambda").predict(np.ones((1, 2), "f4")), [[2.0, 2.0]])
    foreign = tmp_path / "foreign.keras"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(foreign, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            if info.filename == "config.json":
                content = content.replace(b'"Lambda"', b'"system"').replace(b'"keras.layers"', b'"os"')
            target.writestr(info.filename, content)
    with pytest.raises(UntrustedError, match=r"of the module 'os', which would be imported"):
        om.models.put(foreign, "foreign")


def test_a_saved_model_folder_is_converted_and_only_given_back_with_trust(om, tmp_path):
    model = small()
    model.export(str(tmp_path / "saved"), format="tf_saved_model", verbose=False)
    version = om.models.put(tmp_path / "saved", "saved")
    x = np.random.default_rng(2).normal(size=(3, 4)).astype("f4")
    assert version.kind == "saved_model"
    np.testing.assert_allclose(om.models.get("saved").predict(x), model.predict(x, verbose=0), atol=1e-5)
    assert hasattr(om.models.get("saved", trusted=True), "signatures")


def test_wrong_models_and_calls_are_refused_before_anything_starts(om, tmp_path):
    with pytest.raises(ArgumentError, match=r"example=None: the Keras model does not know its inputs"):
        om.models.put(keras.Sequential([keras.layers.Dense(1)]), "net")
    with pytest.raises(DataError, match=r"example= does not fit the model"):
        om.models.put(small(), "net", example=np.zeros((2, 7), "f4"))
    model = small()
    model.save(tmp_path / "model.h5")
    with pytest.raises(ArgumentError, match=r"model.h5' is an HDF5 file, which a store does not take"):
        om.models.put(tmp_path / "model.h5", "net")
    assert om.models.list() == om.sweep() == []
