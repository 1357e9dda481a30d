"""The REST part of the seed: a MobileNetV2 for 192 x 192 images in a store, asked with its snippet."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import requests

from orca.store import Store
from tests.serving.servers import serving

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.mark.slow
def test_a_served_mobilenet_predicts_as_keras_does(tmp_path: Path):
    tf = pytest.importorskip("tensorflow")
    mobile_net = tf.keras.applications.MobileNetV2(
        input_shape=(192, 192, 3), include_top=False, weights=None, alpha=0.35
    )
    model = tf.keras.Sequential([mobile_net, tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(5)])
    img = np.random.default_rng(0).integers(0, 256, (192, 192, 3)).astype("f4")
    # With random weights the outputs are about 1e-9, which any tolerance would accept: normalize the layers.
    for layer in mobile_net.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = 0.3
    mobile_net(np.stack([img, img[::-1], img.T.reshape(img.shape)]), training=True)
    om = Store(tmp_path / "store")
    om.models.put(model, "tfkeras-flower")
    with serving(om.path, "--model", "tfkeras-flower") as server:
        predict_url = f"{server.url}/api/v1/model/tfkeras-flower/predict"
        resp = requests.put(predict_url, json={
                    'columns': ['x'],
                    'data': [{'x': img.flatten().tolist()}],
                    'shape': [192, 192, 3],
              })  # fmt: skip
        data = resp.json()
        prediction = data['result']  # fmt: skip
    expected = model.predict(np.array([img]), verbose=0)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(prediction, expected, atol=1e-5)
