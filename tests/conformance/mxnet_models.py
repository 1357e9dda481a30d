"""Models and callbacks for the MXNet tests, separate from other frameworks because every rank imports this file."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import gluon

from orca import Estimator, create_config

SEED = 3

CONFIG = create_config(optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9}, log_interval=0)


def model_creator(config):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dense(2))
    net.initialize(mx.init.Xavier())
    if config.get("hybrid"):
        net.hybridize()
    return net


def loss_creator(config):
    return gluon.loss.SoftmaxCrossEntropyLoss()


def lenet(config):
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(6, 5, padding=2, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Conv2D(16, 5, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Flatten(),
        gluon.nn.Dense(120, activation="relu"),
        gluon.nn.Dense(84, activation="relu"),
        gluon.nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def symbol_creator(config):
    data = mx.sym.var("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="first"), act_type="tanh")
    output = mx.sym.FullyConnected(hidden, num_hidden=2, name="second")
    return mx.sym.SoftmaxOutput(output, name="softmax", normalization=config.get("normalization", "null"))


def module_creator(config):
    return mx.mod.Module(symbol_creator(config), data_names=["data"], label_names=["softmax_label"])


class TwoIn(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.left, self.right = gluon.nn.Dense(4), gluon.nn.Dense(4)
        self.out = gluon.nn.Dense(1)

    def hybrid_forward(self, F, a, b):
        return self.out(F.concat(self.left(a), self.right(b), dim=1)), F.relu(a).sum(axis=1)


def half(label, output):
    return float(((output[:, 1] > 0.5) == (label == 1)).mean())


def probabilities(config):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(2), gluon.nn.HybridLambda(lambda F, x: F.softmax(x)))
    return net


def estimator(workers, servers=1, **more):
    return Estimator.from_mxnet(
        **{
            "config": CONFIG,
            "model_creator": model_creator,
            "loss_creator": loss_creator,
            "metrics": "accuracy",
            "num_workers": workers,
            "num_servers": servers,
            "seed": SEED,
            **more,
        }
    )


def same_weights(est, net, message=""):
    mine, theirs = est.get_model()._collect_params_with_prefix(), net._collect_params_with_prefix()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        ours, other = value.data().asnumpy(), theirs[name].data().asnumpy()
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6, err_msg=f"{message} {name}")
