"""Models and callbacks for the MXNet tests, separate from other frameworks because every rank imports this file."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import mxnet as mx
from mxnet import gluon

from orca import create_config
from orca.callbacks import Callback
from orca.testing.leftovers import listening

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


class KillRole(Callback):
    """Kills a rank's process once, from worker 0, after a step; the driver writes the process ids to a file."""

    acts_on_batches = False

    def __init__(self, rank: int, folder: str, step: int = 15) -> None:
        self.rank, self.folder, self.step = rank, Path(folder), step

    def after_batch(self, run):
        if run.rank == 0 and run.step == self.step and not (self.folder / "killed").exists():
            pids = json.loads(wait_for_text(self.folder / "pids"))
            (self.folder / "ports").write_text(json.dumps(sorted(listening(pids))))
            (self.folder / "killed").write_text(str(time.time()))
            os.kill(pids[self.rank], signal.SIGKILL)


def wait_for_text(path: Path, seconds: float = 20.0) -> str:
    """Return the text of a file as soon as it exists."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)
    return path.read_text()


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
