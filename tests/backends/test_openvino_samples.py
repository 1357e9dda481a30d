"""The sample that predict and quantize inspect first: no more rows and shards than necessary."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from orca import Estimator, XShards
from orca.context import Context
from orca.errors import ColumnError, DataError
from orca.runs.predict import sample_of
from orca.shards.shard_formats import arrow_column
from tests.backends.openvino_models import dense, dense_result

x = np.random.default_rng(0).normal(size=(40, 6)).astype("f4")


@pytest.fixture
def est(tmp_path):
    return Estimator.from_openvino(model_path=dense(tmp_path / "dense.xml"))


def test_a_sample_has_the_requested_rows_however_small_the_shards(context: Context, est):
    shards = XShards.from_shards([{"x": part} for part in np.split(x, [0, 3, 3, 20])])
    for data in (shards, shards.transform_shard(lambda shard: {"x": shard["x"]})):
        np.testing.assert_array_equal(sample_of(est._setup, data, None, 30, context), x[:30])
        assert len(sample_of(est._setup, data, None, 100, context)) == 40
        np.testing.assert_allclose(est.predict(data).to_numpy()["prediction"], dense_result(x), atol=1e-5)


def test_an_empty_first_shard_is_skipped(local: Context):
    torch.manual_seed(0)
    plain = Estimator.from_torch(model=nn.Linear(6, 2))
    shards = XShards.from_shards([{"x": part} for part in (x[:0], x[:0], x)])
    predicted = plain.predict(shards, accelerator="openvino").to_numpy()["prediction"]
    np.testing.assert_allclose(predicted, plain.predict(x), atol=1e-5)
    with pytest.raises(DataError, match="has to see a row"):
        plain.predict(XShards.from_shards([{"x": x[:0]}] * 3), accelerator="openvino")


def mark(shard, folder):
    number = int(shard["number"][0])
    with open(os.path.join(folder, str(number)), "a") as file:
        file.write("x")
    return {"x": np.full((5, 6), number, "f4")}


def test_shards_outside_the_sample_are_computed_once_and_lazily(local: Context, est, tmp_path):
    shards = XShards.from_shards([{"number": np.array([number])} for number in range(20)])
    predicted = est.predict(shards.transform_shard(mark, str(tmp_path)))
    assert len(list(tmp_path.glob("[0-9]*"))) == local.cores
    assert len(predicted.to_numpy()["prediction"]) == 100
    assert [(tmp_path / str(number)).read_text() for number in range(20)] == ["x"] * 20


def test_a_sampled_step_keeps_the_numbers_of_its_shards(local: Context, est):
    shards = XShards.from_shards([{"x": part} for part in np.split(x, 20)]).sample(0.5, seed=3)
    expected = shards.to_numpy()["x"]
    again = XShards.from_shards([{"x": part} for part in np.split(x, 20)]).sample(0.5, seed=3)
    np.testing.assert_array_equal(sample_of(est._setup, again, None, 9, local), expected[:9])
    np.testing.assert_array_equal(again.transform_shard(lambda shard: shard).to_numpy()["x"], expected)
    np.testing.assert_array_equal(again.to_numpy()["x"], expected)


def test_shards_of_frames_keep_their_columns(context: Context, est):
    frame = pd.DataFrame({"features": list(x), "id": np.arange(40)})
    predicted = est.predict(XShards.partition(frame, num_shards=3)).to_pandas()
    assert list(predicted.columns) == ["features", "id", "prediction"]
    assert predicted["id"].tolist() == list(range(40))
    np.testing.assert_allclose(np.stack(predicted["prediction"]), dense_result(x), atol=1e-5)


def test_shards_of_tables_keep_their_columns(local: Context, est):
    table = pa.table({"features": arrow_column(x), "id": np.arange(40)})
    predicted = est.predict(XShards.from_arrow(table, num_shards=3)).to_numpy()
    assert predicted.column_names == ["features", "id", "prediction"]
    with pytest.raises(ColumnError, match="Did you mean 'featrues'"):
        est.predict(XShards.from_arrow(table.rename_columns(["featrues", "id"])))


def test_quantize_uses_as_many_rows_as_requested(local: Context, est, monkeypatch):
    nncf = pytest.importorskip("nncf")
    sizes = []
    real = nncf.quantize
    monkeypatch.setattr(
        nncf, "quantize", lambda *arguments, **more: sizes.append(more["subset_size"]) or real(*arguments, **more)
    )
    est.quantize(XShards.from_shards([{"x": part} for part in np.split(x, 20)]), rows=33)
    assert sizes == [33]
