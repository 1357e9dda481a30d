"""Keras models with OpenVINO: as objects, from files, and with accelerator="openvino"."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from orca import Estimator
from orca.context import Context
from orca.errors import ArgumentError

x = np.random.default_rng(0).normal(size=(18, 4)).astype("f4")


def dense():
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model


def two(named):
    keras.utils.set_random_seed(0)
    zeta, alpha = keras.Input((4,), name="zeta"), keras.Input((4,), name="alpha")
    wide, apex = keras.layers.Dense(2)(zeta), keras.layers.Dense(2)(alpha)
    inputs = {"zeta": zeta, "alpha": alpha} if named else [zeta, alpha]
    model = keras.Model(inputs, {"wide": wide, "apex": apex} if named else [wide, apex])
    model.compile("sgd", "mse")
    return model


def test_model_objects_and_files(local: Context, tmp_path):
    model = dense()
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    model.export(str(tmp_path / "saved"), verbose=False)
    for est in (
        Estimator.from_openvino(model=model),
        Estimator.from_openvino(model_path=tmp_path / "model.keras"),
        Estimator.from_openvino(model_path=tmp_path / "saved"),
    ):
        np.testing.assert_allclose(est.predict(x, batch_size=5), expected, atol=1e-5)
    with pytest.raises(ArgumentError, match="example="):
        Estimator.from_openvino(model=keras.Sequential([keras.layers.Dense(2)]))


def test_inputs_and_outputs_keep_their_order_and_names(local: Context):
    zeta, alpha = x, x[::-1].copy()
    model = two(named=True)
    expected = model.predict({"zeta": zeta, "alpha": alpha}, verbose=0)
    for est, more in (
        (Estimator.from_openvino(model=model), {}),
        (Estimator.from_keras(model=model), {"accelerator": "openvino"}),
    ):
        predicted = est.predict({"alpha": alpha, "zeta": zeta}, **more)
        assert list(predicted) == ["wide", "apex"]
        for name in expected:
            np.testing.assert_allclose(predicted[name], expected[name], atol=1e-5)
    model = two(named=False)
    expected = model.predict([zeta, alpha], verbose=0)
    predicted = Estimator.from_keras(model=model).predict([zeta, alpha], accelerator="openvino")
    for output, reference in zip(predicted, expected, strict=True):
        np.testing.assert_allclose(output, reference, atol=1e-5)


def test_a_trained_estimator_predicts_the_same_with_openvino(local: Context):
    est = Estimator.from_keras(model=dense())
    est.fit(x, x[:, :2], batch_size=6)
    np.testing.assert_allclose(est.predict(x, accelerator="openvino"), est.predict(x), atol=1e-5)
