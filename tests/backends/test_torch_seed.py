"""The PyTorch snippets of the Orca document; only the imports and the data are changed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, XShards, init_orca_context
from orca.context import Context
from tests.conformance.test_lenet import LeNet

args = SimpleNamespace(lr=1e-2, epochs=1)
rng = np.random.default_rng(0)
images, labels = rng.normal(size=(40, 1, 28, 28)).astype("f4"), rng.integers(0, 10, 40)
dataset = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
train_loader = torch.utils.data.DataLoader(dataset, batch_size=10)
xshards = XShards.partition({"x": images})


@pytest.mark.parametrize("more", [{}, {"backend": "bigdl"}])
def test_snippet_with_objects_and_a_loader(local: Context, more):
    model = LeNet()  # a torch.nn.Module
    model.train()
    criterion = nn.NLLLoss()

    adam = torch.optim.Adam(model.parameters(), args.lr)
    est = Estimator.from_torch(model=model, optimizer=adam, loss=criterion, **more)

    est.fit(data=train_loader, epochs=args.epochs)
    predictions = est.predict(xshards)

    assert est.step == 4  # the loader's own batches
    assert predictions.to_numpy()["prediction"].shape == (40, 10)


def model_creator(config):
    model = LeNet()  # a torch.nn.Module
    model.train()
    return model


def optimizer_creator(model, config):
    return torch.optim.Adam(model.parameters(), config["lr"])


def train_loader_func(config, batch_size):
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size)


@pytest.mark.spark
@pytest.mark.parametrize(
    "backend", ["torch_distributed", pytest.param("horovod", marks=pytest.mark.horovod), "parameter_server"]
)
def test_snippet_with_creators_and_a_spark_dataframe(spark_session, backend):
    import pyarrow as pa

    from orca.shards.shard_formats import arrow_column

    init_orca_context(runtime="spark", cores=4)
    df = spark_session.createDataFrame(pa.table({"image": arrow_column(images), "id": np.arange(40)}))
    est = Estimator.from_torch(model=model_creator,
                               optimizer=optimizer_creator,
                               loss=nn.NLLLoss(),
                               config={"lr": 1e-2},
                               backend=backend,
                               workers=2)  # fmt: skip
    est.fit(data=train_loader_func, epochs=args.epochs)
    predictions = est.predict(data=df,
                              feature_cols=['image'])  # fmt: skip

    rows = sorted(predictions.collect(), key=lambda row: row["id"])
    with torch.no_grad():
        expected = est.get_model().eval()(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose([row["prediction"] for row in rows], expected, rtol=1e-3, atol=1e-4)
    assert predictions.columns == ["image", "id", "prediction"]
    # A prediction on the result replaces the old column.
    assert est.predict(predictions, feature_cols="image").columns == ["image", "id", "prediction"]
