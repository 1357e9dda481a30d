"""The MXNet snippets of the Orca guide, verbatim except for the import line and the data."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from orca import Estimator, create_config, init_orca_context
from orca.context import Context

mx = pytest.importorskip("mxnet")
from mxnet import gluon


def LeNet():
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(6, 5, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Flatten(),
        gluon.nn.Dense(32, activation="relu"),
        gluon.nn.Dense(10),
    )
    return net


def get_model(config):
    net = LeNet()  # a mxnet.gluon.Block
    return net


def get_loss(config):
    return gluon.loss.SoftmaxCrossEntropyLoss()


def test_the_guide_snippets(context: Context):
    follow_the_guide()


def test_the_guide_snippets_on_two_cores():
    with init_orca_context(cores=2):
        follow_the_guide()


@pytest.mark.ray
@pytest.mark.timeout(170)
def test_the_guide_snippets_on_a_ray_of_two_cpus():
    follow_in_a_program('init_orca_context(runtime="ray", cores=2, address="local")')


@pytest.mark.spark
@pytest.mark.timeout(170)
def test_the_guide_snippets_on_a_spark_of_two_cores():
    follow_in_a_program('init_orca_context(runtime="spark", cores=2)')


def follow_in_a_program(context: str) -> None:
    """Follow the guide in another process, as this one has a Ray and a Spark with more cores."""
    program = (
        f"from orca import init_orca_context\nfrom tests.backends.test_mxnet_seed import follow_the_guide\n"
        f"with {context} as context:\n    follow_the_guide()\n    print(context.cores)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=160)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "2"


def follow_the_guide() -> None:
    config = create_config(log_interval=2, optimizer="adam",
                           optimizer_params={'learning_rate': 0.02})  # fmt: skip
    est = Estimator.from_mxnet(config=config,
                               model_creator=get_model,
                               loss_creator=get_loss,
                               num_workers=2)  # fmt: skip

    rng = np.random.default_rng(0)
    label_ndarray = rng.integers(0, 10, 96)
    data_ndarray = rng.normal(size=(96, 1, 16, 16)).astype("f4") + label_ndarray[:, None, None, None] / 5

    def get_train_data_iter(config, kv):
        train = mx.io.NDArrayIter(data_ndarray, label_ndarray,
                                  batch_size=config["batch_size"], shuffle=True)  # fmt: skip
        return train

    history = est.fit(get_train_data_iter, epochs=2)

    assert history["rows"] == [96, 96]
    assert history["loss"][-1] < history["loss"][0]
    more = est.fit(get_train_data_iter, epochs=4, batch_size=16)
    assert more["loss"][-1] < history["loss"][-1]
    assert est.predict(data_ndarray).shape == (96, 10)
