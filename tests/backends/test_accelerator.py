"""predict(accelerator="openvino") and quantize: OpenVINO's results match the framework's."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from orca import Estimator, XShards, init_orca_context
from orca.context import Context
from orca.errors import ArgumentError, DataError, MissingPackageError
from orca.shards.shard_formats import arrow_column

x = np.random.default_rng(0).normal(size=(50, 1, 8, 8))


def conv():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4), nn.Softmax(dim=1)
    ).eval()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, left, right):
        return {"total": self.a(left) + self.b(right), "left": self.a(left)}


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, rows):
        return self.a(rows), rows.sum(dim=1)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, rows):
        return self.a(rows) + torch.rand(1)


def test_arrays_frames_and_shards_match_the_framework(local: Context):
    est = Estimator.from_torch(model=conv(), workers=1)
    with torch.no_grad():
        expected = conv()(torch.from_numpy(x).float()).numpy()
    np.testing.assert_allclose(est.predict(x, accelerator="openvino", batch_size=16), expected, atol=1e-5)
    shards = est.predict(XShards.partition({"x": x}, num_shards=3), accelerator="openvino").to_numpy()
    np.testing.assert_allclose(shards["prediction"], expected, atol=1e-5)
    frame = est.predict(pd.DataFrame({"image": list(x)}), feature_cols="image", accelerator="openvino")
    np.testing.assert_allclose(np.stack(frame["prediction"]), expected, atol=1e-5)


@pytest.mark.spark
def test_a_spark_frame_matches_the_framework(spark_session):
    init_orca_context(runtime="spark", cores=4)
    frame = spark_session.createDataFrame(pa.table({"image": arrow_column(x), "id": np.arange(50)}))
    est = Estimator.from_torch(model=conv())
    plain = est.predict(frame, feature_cols="image").toPandas().sort_values("id")
    fast = est.predict(frame, feature_cols="image", accelerator="openvino").toPandas().sort_values("id")
    np.testing.assert_allclose(np.stack(fast["prediction"]), np.stack(plain["prediction"]), atol=1e-5)


@pytest.mark.ray
def test_a_ray_dataset_matches_the_framework(ray_cluster):
    import ray

    init_orca_context(runtime="ray", cores=4)
    dataset = ray.data.from_arrow([pa.table({"image": arrow_column(part)}) for part in np.array_split(x, 3)])
    est = Estimator.from_torch(model=conv())
    plain = est.predict(dataset, feature_cols="image").to_pandas()
    fast = est.predict(dataset, feature_cols="image", accelerator="openvino").to_pandas()
    np.testing.assert_allclose(np.stack(fast["prediction"]), np.stack(plain["prediction"]), atol=1e-5)


def test_structures_of_inputs_and_outputs_are_preserved(local: Context):
    left, right = np.random.default_rng(1).normal(size=(7, 3)), np.random.default_rng(2).normal(size=(7, 4))
    est = Estimator.from_torch(model=Two())
    for data in ({"right": right, "left": left}, (left, right)):
        plain, fast = est.predict(data), est.predict(data, accelerator="openvino")
        assert list(fast) == list(plain) == ["total", "left"]
        for name in plain:
            np.testing.assert_allclose(fast[name], plain[name], atol=1e-5)
    pair = Estimator.from_torch(model=Pair()).predict(left, accelerator="openvino")
    assert isinstance(pair, tuple)
    assert [part.shape for part in pair] == [(7, 2), (7,)]
    integers = Estimator.from_torch(model=nn.Linear(3, 2)).predict(np.arange(12).reshape(4, 3), accelerator="openvino")
    assert integers.shape == (4, 2)


def test_a_conversion_is_reused_until_the_model_is_trained(local: Context):
    rows, target = np.random.default_rng(0).normal(size=(40, 3)).astype("f4"), np.ones((40, 2), "f4")
    est = Estimator.from_torch(model=nn.Linear(3, 2), optimizer=torch.optim.SGD, loss=nn.MSELoss(), config={"lr": 0.1})
    before = est.predict(rows, accelerator="openvino")
    converted = est._cache._entries["converted"][1]
    est.predict(rows, accelerator="openvino")
    assert est._cache._entries["converted"][1] is converted
    est.fit(rows, target, batch_size=10)
    after = est.predict(rows, accelerator="openvino")
    assert np.abs(after - before).max() > 1e-2
    np.testing.assert_allclose(after, est.predict(rows), atol=1e-5)


def test_results_that_differ_from_the_framework_are_refused(local: Context):
    with pytest.raises(DataError, match="OpenVINO gives other numbers than torch"):
        Estimator.from_torch(model=Noisy()).predict(x[:, 0, 0, :3], accelerator="openvino")
    with pytest.raises(DataError, match="has to see a row"):
        Estimator.from_torch(model=conv()).predict(x[:0], accelerator="openvino")
    with pytest.raises(ArgumentError, match="Did you mean 'openvino'"):
        Estimator.from_torch(model=conv()).predict(x, accelerator="openvno")


@pytest.mark.skipif(importlib.util.find_spec("nncf") is None, reason="needs nncf")
def test_quantize_gives_an_int8_model_close_to_the_original(local: Context, tmp_path):
    est = Estimator.from_torch(model=conv())
    expected = est.predict(x, accelerator="openvino")
    small = est.quantize(x, rows=40)
    quantized = small.predict(x)
    assert np.abs(quantized - expected).max() < 0.1
    assert (quantized.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.8
    again = Estimator.from_openvino(model_path=small.save(str(tmp_path / "int8.xml")))
    assert "FakeQuantize" in (tmp_path / "int8.xml").read_text()
    np.testing.assert_allclose(again.predict(x), quantized, atol=1e-5)
    third = Estimator.from_openvino(model_path=est.export("openvino", str(tmp_path / "f32"), x[:2])).quantize(
        XShards.partition({"x": x})
    )
    assert np.abs(third.predict(x) - expected).max() < 0.1
    with pytest.raises(ArgumentError, match="preset='best'"):
        est.quantize(x, preset="best")
    with pytest.raises(DataError, match="no rows"):
        Estimator.from_openvino(model_path=str(tmp_path / "f32.xml")).quantize(x[:0])


def test_without_nncf_the_install_command_is_reported(local: Context, monkeypatch, tmp_path):
    path = Estimator.from_torch(model=conv()).export("openvino", str(tmp_path / "f32"), x[:2])
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "nncf" else real(name, *more))
    with pytest.raises(MissingPackageError, match=r"pip install .*orca-estimator\[nncf\]"):
        Estimator.from_openvino(model_path=path).quantize(x)
