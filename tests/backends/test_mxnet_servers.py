"""Servers and the scheduler of MXNet's KVStore: failures, callbacks and optimizer state."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from orca import WorkerError, create_config
from orca.backends.mxnet import local_sockets
from orca.backends.mxnet.nets import Weight
from orca.backends.mxnet.optimizers import Learner
from orca.callbacks import Callback, EarlyStopping, ModelCheckpoint
from orca.context import Context
from tests.conformance.models import make_data
from tests.conformance.mxnet_models import estimator

mx = pytest.importorskip("mxnet")
from mxnet import gluon

from tests.conformance.mxnet_models import model_creator


class TakenPort:
    """A model creator that, once unpickled, makes the scheduler use a socket that it cannot open."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, config):
        return model_creator(config)

    def __setstate__(self, state):
        from orca.backends.mxnet import kvstore

        self.__dict__.update(state)
        held, last = kvstore.held_port, lambda place: place.rank == place.world - 1
        kvstore.held_port = lambda context: self.port if last(context.place) else held(context)


def test_a_scheduler_that_cannot_listen_ends_fit_instead_of_hanging(local: Context):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        local_sockets.path_of(port).mkdir()
        began = time.monotonic()
        try:
            with pytest.raises(WorkerError, match="scheduler") as caught:
                estimator(2, model_creator=TakenPort(port)).fit(*make_data(16), batch_size=8)
        finally:
            local_sockets.path_of(port).rmdir()
    assert time.monotonic() - began < 30
    assert "bind failed" in str(caught.value)


def test_workers_wait_for_the_store_for_a_limited_time():
    program = (
        "import time, orca; from orca.backends.mxnet.kvstore import limited\n"
        "with limited(0.1, 'a'): pass\n"
        "time.sleep(0.3)\n"
        "with limited(0.1, 'the scheduler'): time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stderr.startswith("Could not connect to the scheduler within 0.1 s")


class Inspector(Callback):
    """Inspects the model in every hook; saves and stops the run after epoch 2."""

    acts_on_batches = False

    def __init__(self, folder: str) -> None:
        self.folder, self.norms = folder, []

    def before_run(self, run):
        assert run.rank < run.world
        run.optimizer.wd = 0.0

    def before_epoch(self, run):
        assert run.rank < run.world
        self.norms.append(norm(run.model))

    def after_batch(self, run):
        assert norm(run.model) > 0

    def after_epoch(self, run):
        run.record["norm"] = norm(run.model)
        if run.epoch == 2:
            run.save(self.folder)
            run.stop("seen enough")

    def after_run(self, run):
        self.norms.append(norm(run.model))


def norm(model):
    return float(sum(value.data().square().sum().asscalar() for value in model.collect_params().values()))


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_callbacks_run_on_workers_and_can_save_and_stop(local: Context, kind, tmp_path):
    x, y = make_data(64)
    est = estimator(2, kvstore=kind)
    inspector, saver = Inspector(str(tmp_path / "saved")), ModelCheckpoint(str(tmp_path / "last"), keep=1)
    history = est.fit(x, y, epochs=5, batch_size=16, callbacks=[inspector, saver])
    assert history["epoch"] == [1, 2]
    assert len(inspector.norms) == 3
    assert history["norm"] == pytest.approx(inspector.norms[1:])
    assert estimator(2).load(str(tmp_path / "saved")).epoch == 2
    assert [path.name for path in (tmp_path / "last").iterdir()] == ["epoch-0002"]
    assert estimator(1, None).load(saver.best_path).evaluate(x, y) == pytest.approx(est.evaluate(x, y), rel=1e-5)


class Unseeded(mx.init.Initializer):
    """Ignores the seed."""

    def _init_weight(self, name, array):
        array[:] = np.random.default_rng().normal(size=array.shape)


def half_frozen(config):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dense(2))
    net.initialize(Unseeded())
    net[0].collect_params().setattr("grad_req", "null")
    return net


class SavesWeights(Callback):
    """Writes each worker's weights to a file, before and after the run."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def before_run(self, run):
        self.save(run, "first")

    def after_run(self, run):
        self.save(run, "last")

    def save(self, run, when):
        values = [value.data().asnumpy().reshape(-1) for value in run.model.collect_params().values()]
        np.save(f"{self.folder}/{when}-{run.rank}.npy", np.concatenate(values))


@pytest.mark.parametrize(
    "more",
    [
        {"num_servers": 2},
        {"kvstore": "dist_async"},
        pytest.param({"backend": "horovod", "num_servers": None}, marks=pytest.mark.horovod),
    ],
    ids=["sync", "async", "horovod"],
)
def test_all_workers_start_from_the_weights_of_worker_0(local: Context, more, tmp_path):
    est = estimator(2, model_creator=half_frozen, **more)
    est.fit(*make_data(32), batch_size=8, callbacks=[SavesWeights(str(tmp_path))])
    for when in ("first", "last"):
        first, second = (np.load(tmp_path / f"{when}-{rank}.npy") for rank in range(2))
        np.testing.assert_array_equal(first, second, err_msg=when)
        assert np.abs(first).sum() > 0


def test_servers_restore_the_optimizer_of_the_best_epoch(local: Context, tmp_path):
    x, y = make_data(64)
    rate = mx.lr_scheduler.FactorScheduler(3, 0.9, base_lr=0.02)
    config = create_config("adam", {"learning_rate": 0.02, "lr_scheduler": rate}, log_interval=0)
    est = estimator(2, 2, kvstore="dist_async", config=config)
    # The loss falls, so with mode="max" the first epoch is the best one.
    stop = EarlyStopping("loss", mode="max", restore_best=True)
    saver = ModelCheckpoint(str(tmp_path / "all"), keep=None)
    history = est.fit(x, y, epochs=5, batch_size=16, callbacks=[stop, saver])
    assert history["epoch"] == [1, 2]
    first = estimator(2, kvstore="dist_async", config=config).load(str(tmp_path / "all" / "epoch-0001"))
    mine, theirs = est._learned.state["optimizer"], first._learned.state["optimizer"]
    assert set(mine["counts"].values()) == {8}  # 4 steps of two workers
    assert mine["schedule"] == theirs["schedule"] != {}
    for key, moments in theirs["states"].items():
        np.testing.assert_array_equal(np.concatenate(moments), np.concatenate(mine["states"][key]))
    for name, value in first._learned.state["model"].items():
        np.testing.assert_array_equal(value, est._learned.state["model"][name], err_msg=name)


@pytest.mark.parametrize("name", ["sgd", "nadam"])
def test_a_reset_optimizer_behaves_like_a_new_one(name):
    def new():
        rate = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
        return mx.optimizer.create(name, learning_rate=0.1, lr_scheduler=rate)

    def train(learner):
        for _ in range(6):
            learner.update()
        return learner.weights[0].value.asnumpy()

    def learner():
        return Learner(new(), [Weight("w", mx.nd.ones(3), mx.nd.array([1.0, 2.0, 3.0]))])

    used = learner()
    expected = train(used)
    used.weights[0].value[:] = 1
    used.load_state(None)
    np.testing.assert_array_equal(train(used), expected)
