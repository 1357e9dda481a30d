"""`TFNet` as a frozen layer in a model of BigDL's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orca.tf1 as tf
from orca.bigdl.nn.criterion import CrossEntropyCriterion, MSECriterion
from orca.bigdl.nn.layer import Linear, Model, ReLU, Sequential
from orca.bigdl.optim.optimizer import SGD, MaxEpoch, Optimizer
from orca.context import Context
from orca.errors import ArgumentError, WorkerError
from orca.tfpark import TFNet

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype("f4")
LABELS = (ROWS[:, 0] > 0) + 1.0


def net() -> tuple[TFNet, np.ndarray[Any, Any]]:
    """Return a net with random weights, and what it computes."""
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        inputs = tf.placeholder(tf.float32, (None, 6))
        outputs = tf.layers.dense(inputs, 5, tf.nn.relu)
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        return TFNet.from_session(session, [inputs], [outputs]), session.run(outputs, {inputs: ROWS})


def test_a_model_trains_behind_the_net_which_stays_as_it_is(local: Context):
    frozen, features = net()
    start = Linear(5, 2).get_weights()
    model = Sequential().add(frozen).add(Linear(5, 2).set_weights(start))
    np.testing.assert_allclose(model.forward(ROWS), features @ start[0].T + start[1], atol=1e-5)
    alone = Sequential().add(Linear(5, 2).set_weights(start))
    for one, x in ((model, ROWS), (alone, features)):
        options = {"optim_method": SGD(0.1), "end_trigger": MaxEpoch(2), "batch_size": 8, "seed": 0}
        Optimizer(
            model=one, training_rdd=(x, LABELS), criterion=CrossEntropyCriterion(), workers=2, **options
        ).optimize()
    for trained, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(trained, expected, atol=1e-6)
    assert not np.allclose(model.get_weights()[0], start[0])
    np.testing.assert_allclose(Sequential().add(frozen).predict(ROWS), features, atol=1e-6)


def test_the_net_is_a_node_of_a_graph(local: Context):
    frozen, features = net()
    node = frozen()
    weights = (head := Linear(5, 2)).get_weights()
    model = Model([node], [ReLU()(head(node))])
    np.testing.assert_allclose(model.forward(ROWS), np.maximum(features @ weights[0].T + weights[1], 0), atol=1e-5)


def test_layers_before_the_net_cannot_be_trained(local: Context):
    model = Sequential().add(Linear(6, 6)).add(net()[0])
    optimizer = Optimizer(
        model=model, training_rdd=(ROWS, np.zeros((40, 5), "f4")), criterion=MSECriterion(), optim_method=SGD(0.1),
        end_trigger=MaxEpoch(1), batch_size=8, workers=1,
    )  # fmt: skip
    with pytest.raises(WorkerError, match="passes no gradient to the layers before it"):
        optimizer.optimize()


def test_the_net_of_a_file_is_a_layer_too(local: Context, tmp_path: Path):
    frozen, features = net()
    saved = TFNet.from_saved_model(frozen.estimator.export("savedmodel", str(tmp_path / "saved")))
    np.testing.assert_allclose(Sequential().add(saved).forward(ROWS), features, atol=1e-6)


def test_only_layers_are_added():
    with pytest.raises(ArgumentError, match="expected a layer"):
        Sequential().add("layer")
