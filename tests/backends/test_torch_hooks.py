"""Hooks into `fit` on torch models: schedulers, early stopping, callbacks, checkpoints and TensorBoard."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca import WorkerError
from orca.callbacks import Callback, EarlyStopping, LambdaCallback, LRScheduler, ModelCheckpoint
from orca.context import Context
from orca.errors import ArgumentError
from tests.backends.torch_estimators import close, estimator
from tests.conformance.models import make_data


def test_schedulers_step_per_epoch_per_step_and_on_plateaus(local: Context):
    x, y = make_data(64)
    lr = torch.optim.lr_scheduler
    est = estimator(scheduler_creator=lambda optimizer, config: lr.StepLR(optimizer, 1, gamma=config["gamma"]),
                    config={"lr": 0.1, "gamma": 0.5})  # fmt: skip
    assert est.fit(x, y, epochs=3, batch_size=16)["lr"] == pytest.approx([0.1, 0.05, 0.025])
    # A second fit continues the schedule.
    assert est.fit(x, y, epochs=1, batch_size=16)["lr"] == pytest.approx([0.0125])
    stepwise = estimator()
    callback = LRScheduler(lambda optimizer: lr.LinearLR(optimizer, 1.0, 0.0, total_iters=8), per="step")
    assert stepwise.fit(x, y, epochs=2, batch_size=16, callbacks=callback)["lr"] == pytest.approx([0.05, 0.0])
    plateau = estimator(config={"lr": 0.0})
    callback = LRScheduler(lambda optimizer, config: lr.ReduceLROnPlateau(optimizer, patience=0, factor=0.1, eps=0))
    plateau = estimator(config={"lr": 1e-30})
    rates = plateau.fit(x, y, epochs=3, batch_size=16, callbacks=[callback])["lr"]
    assert rates[-1] < rates[0]


def test_early_stopping_ends_all_ranks_together_and_restores_the_best(local: Context):
    x, y = make_data(64)
    est = estimator(config={"lr": 0.3})
    stop = EarlyStopping("val_loss", patience=1, restore_best=True)
    noisy = make_data(40, seed=9)
    history = est.fit(x, y, epochs=60, batch_size=16, validation_data=(noisy[0], 1 - noisy[1]), callbacks=[stop])
    assert len(history) < 60
    assert "did not improve" in history.stopped
    best = min(history["val_loss"])
    assert stop.best == best  # rank 0's copy was sent back
    assert est.evaluate(noisy[0], 1 - noisy[1])["loss"] == pytest.approx(best, rel=1e-6)
    with pytest.raises(ArgumentError, match="EarlyStopping monitors 'val_loss': give validation_data="):
        estimator().fit(x, y, callbacks=[EarlyStopping()])
    with pytest.raises(WorkerError, match="monitor='accuracy' is not among the results: epoch, loss"):
        estimator().fit(x, y, callbacks=[EarlyStopping("accuracy")])


def test_a_stop_request_of_one_rank_stops_all_in_the_same_step(local: Context):
    class Impatient(Callback):
        def __init__(self):
            self.steps = 0

        def after_batch(self, run):
            self.steps = run.step
            if run.rank == 1 and run.step == 5:
                run.stop("rank 1 has seen enough")

    x, y = make_data(200)
    callback = Impatient()
    est = estimator(workers=3)
    history = est.fit(x, y, epochs=3, batch_size=8, callbacks=[callback])
    assert history.stopped == "rank 1 has seen enough"
    assert est.step == callback.steps == 5
    assert history["rows"] == [40]


def test_hooks_are_called_in_order_and_receive_reduced_gradients(local: Context):
    class Recorder(Callback):
        def __init__(self):
            self.calls, self.norms = [], []

        def before_run(self, run):
            self.calls.append("run")

        def before_epoch(self, run):
            self.calls.append(f"epoch {run.epoch}")

        def before_batch(self, run):
            self.calls.append("batch")

        def on_gradients(self, run):
            self.norms.append(float(nn.utils.get_total_norm([p.grad for p in run.model.parameters()])))

        def after_epoch(self, run):
            self.calls.append(f"loss {run.record['loss'] > 0}")
            run.record["mine"] = 7

        def after_run(self, run):
            self.calls.append("end")

    x, y = make_data(32)
    one, two = Recorder(), Recorder()
    assert estimator(workers=2).fit(x, y, epochs=2, batch_size=16, callbacks=[one])["mine"] == [7, 7]
    estimator(workers=1).fit(x, y, epochs=2, batch_size=16, callbacks=[two])
    epoch = ["batch", "batch", "loss True"]
    assert one.calls == ["run", "epoch 1", *epoch, "epoch 2", *epoch, "end"]
    np.testing.assert_allclose(one.norms, two.norms, rtol=1e-4)
    epochs = []
    estimator(workers=1).fit(x, y, callbacks=LambdaCallback(after_epoch=lambda run: epochs.append(run.epoch)))
    with pytest.raises(ArgumentError, match="the class EarlyStopping; expected objects"):
        estimator().fit(x, y, callbacks=[EarlyStopping])


def test_hooks_can_read_and_change_gradients_of_the_parameter_server(local: Context):
    class Halve(Callback):
        acts_on_batches = False

        def __init__(self):
            self.norms = []

        def on_gradients(self, run):
            values = [value.grad for value in run.model.parameters()]
            self.norms.append(float(nn.utils.get_total_norm(values)))
            for value in values:
                value.mul_(0.5)

    x, y = make_data(48)
    hooks = {sync: Halve() for sync in ("ddp", "server")}
    losses = [estimator(sync).fit(x, y, epochs=2, batch_size=16, callbacks=[hooks[sync]])["loss"] for sync in hooks]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(hooks["ddp"].norms, hooks["server"].norms, rtol=1e-4)
    assert losses[0] != estimator().fit(x, y, epochs=2, batch_size=16)["loss"]


class Assign(Callback):
    """Replaces the gradients of parameters with new tensors, and clears them."""

    acts_on_batches = False

    def before_batch(self, run):
        if run.step == 3:
            run.model.zero_grad()

    def on_gradients(self, run):
        if run.step == 1:
            run.model.zero_grad()
        for value in run.model.parameters():
            if run.step != 1 and value.grad is not None:
                value.grad = value.grad * 0.5

    def after_batch(self, run):
        for value in run.model.parameters():
            value.grad = torch.ones_like(value)


@pytest.mark.parametrize("sync", ["ddp", "server", "async", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_gradients_assigned_by_a_hook_are_used(local: Context, sync):
    x, y = make_data(48)
    # Without momentum, because slices of parameters cannot distinguish a zero gradient from none.
    sgd = {"optimizer": torch.optim.SGD, "config": {"lr": 0.5}}
    options = {"mode": "async", "workers": 1} if sync == "async" else {}
    est = estimator("server" if options else sync, **options, **sgd)
    single = estimator(workers=1, **sgd)
    for one in (est, single):
        one.fit(x, y, epochs=2, batch_size=16, callbacks=[Assign()])
    close(est, single.get_model())


def test_model_checkpoints_keep_the_best_and_the_last(local: Context, tmp_path):
    x, y = make_data(64)
    best = ModelCheckpoint(str(tmp_path / "best"), monitor="val_loss", keep=2)
    last = ModelCheckpoint(str(tmp_path / "last"), keep=2)
    est = estimator(config={"lr": 0.5})
    history = est.fit(x, y, epochs=6, batch_size=16, validation_data=make_data(40, seed=9), callbacks=[best, last])
    assert sorted(path.name for path in (tmp_path / "last").iterdir()) == ["epoch-0005", "epoch-0006"]
    order = np.argsort(history["val_loss"])[:2] + 1
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == sorted(f"epoch-{n:04d}" for n in order)
    loaded = estimator(config={"lr": 0.5}).load(best.best_path)
    assert loaded.evaluate(*make_data(40, seed=9))["loss"] == pytest.approx(min(history["val_loss"]), rel=1e-6)


def test_tensorboard_files_and_summaries_match_the_history(local: Context, tmp_path):
    x, y = make_data(64)
    est = estimator(metrics=["accuracy"])
    with pytest.raises(ArgumentError, match="call set_tensorboard"):
        est.get_train_summary()
    est.set_tensorboard(str(tmp_path), "run")
    history = est.fit(x, y, epochs=2, batch_size=16, validation_data=(x, y))
    points = est.get_train_summary("Loss")
    assert [step for step, _, _ in points][:4] == [1, 2, 3, 4]
    assert np.mean([value for _, value, _ in points[:4]]) == pytest.approx(history["loss"][0], rel=1e-5)
    assert [value for _, value, _ in est.get_validation_summary("accuracy")] == pytest.approx(history["val_accuracy"])
    assert list(tmp_path.rglob("events*"))
