"""Cases in which ranks could wait for each other forever, or train differently from a single process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from orca import WorkerError, XShards
from orca.backends.torch.group import have_gpus
from orca.callbacks import Callback, EarlyStopping, Logger
from orca.context import Context
from orca.errors import ArgumentError, ColumnError
from orca.triggers import SeveralIteration
from tests.backends.torch_estimators import BACKENDS, alone, close, estimator
from tests.conformance.models import make_data

UNSHARDED = [sync for sync in BACKENDS if sync != "sharded"]


class FailsThird(torch.optim.SGD):
    def step(self, closure=None):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 3:
            raise ZeroDivisionError("third step")
        return super().step(closure)


def test_a_failing_server_ends_the_fit(local: Context):
    est = estimator("server", mode="async", optimizer=lambda model, config: FailsThird(model.parameters(), 0.1))
    with pytest.raises(WorkerError, match="rank 2 .*ZeroDivisionError: third step"):
        est.fit(*make_data(64), epochs=2, batch_size=8)


def test_a_stop_of_one_rank_before_an_epoch_stops_all(local: Context):
    class Stop(Callback):
        def before_epoch(self, run):
            if run.rank == 0 and run.epoch == 2:
                run.stop("enough")

    est = estimator()
    history = est.fit(*make_data(64), epochs=4, batch_size=16, callbacks=[Stop()])
    assert (len(history), history.stopped, est.epoch) == (1, "enough", 1)


def test_loggers_receive_all_steps_when_an_asynchronous_worker_stops_early(local: Context):
    class Stop(Callback):
        acts_on_batches = False

        def after_batch(self, run):
            if run.rank == 1 and run.batch == 2:
                run.stop("enough")

    class Recorder(Logger):
        def steps(self, first, values):
            self.received = first, values

    recorder = Recorder()
    est = estimator("server", mode="async")
    history = est.fit(*make_data(64), epochs=3, batch_size=16, callbacks=[Stop(), recorder])
    first, values = recorder.received
    assert (first, len(history), history.stopped) == (1, 1, "enough")
    assert {name: len(column) for name, column in values.items()} == {"loss": 4, "lr": 4}
    assert np.isfinite(values["loss"]).all()


def test_an_asynchronous_worker_pushes_the_mean_of_a_short_step(local: Context):
    x, y = make_data(1)
    est = estimator("server", mode="async")
    est.fit(x, y, epochs=3, batch_size=2)
    close(est, alone(x, y, _step, epochs=3, batch_size=2))


def test_models_use_gpus_only_if_every_rank_has_one():
    assert have_gpus([(0, 1)])
    assert have_gpus([(0, 2), (1, 2), (0, 1)])
    assert not have_gpus([(0, 1), (1, 1)])  # two ranks on a host with one GPU
    assert not have_gpus([(0, 2), (1, 2), (0, 0)])  # a host without any


class Branches(nn.Module):
    """Uses one of two branches, depending on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.spare = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        return self.left(x) if x[0, 0] > 0 else self.right(x)


@pytest.mark.parametrize("sync", UNSHARDED)
def test_parameters_used_on_only_some_ranks_do_not_hang(local: Context, sync):
    x, y = make_data(96)
    est = estimator(sync, model=lambda config: Branches(), workers=3)
    history = est.fit(x, y, epochs=3, batch_size=12)
    assert np.isfinite(history["loss"]).all()


class Unfreeze(Callback):
    """Trains the last layer only in the first epoch, and the first layer in later ones."""

    acts_on_batches = False

    def before_epoch(self, run):
        run.model[0].requires_grad_(run.epoch > 1)
        run.model[2].requires_grad_(run.epoch == 1)


@pytest.mark.parametrize("sync", UNSHARDED)
def test_layers_frozen_and_unfrozen_by_a_callback_train_as_in_one_process(local: Context, sync):
    x, y = make_data(48)
    est, single = estimator(sync), estimator(workers=1)
    for one in (est, single):
        one.fit(x, y, epochs=3, batch_size=16, callbacks=[Unfreeze()])
    close(est, single.get_model())


class Alternating(nn.Module):
    """Uses one of its layers in every second training step only, starting with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other, self.calls = nn.Linear(6, 2), nn.Linear(6, 2), 0

    def forward(self, x):
        self.calls += self.training
        return self.body(x) + (self.other(x) if self.calls % 2 else 0)


def test_parameters_used_in_some_steps_only_train_as_in_one_process(local: Context):
    x, y = make_data(64)
    momentum = {"optimizer": lambda model, config: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}
    est, single = (estimator(model=lambda config: Alternating(), workers=n, **momentum) for n in (3, 1))
    for one in (est, single):
        one.fit(x, y, epochs=2, batch_size=16)
    close(est, single.get_model())


class Twice(nn.Module):
    """Checkpoints the activations of a shared layer so that its gradient arrives in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(6, 2), nn.Linear(2, 2)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.shared, x if x.shape[1] == 2 else self.first(x), use_reentrant=True)
        return x


def test_gradients_that_arrive_in_two_parts_are_refused(local: Context):
    with pytest.raises(WorkerError, match="gradient twice in one backward pass.*use_reentrant=False"):
        estimator(model=lambda config: Twice()).fit(*make_data(32), batch_size=16)


class Late(nn.Module):
    """Uses one of its layers only from the third training step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.late, self.calls = nn.Linear(6, 2), nn.Linear(6, 2), 0

    def forward(self, x):
        self.calls += self.training
        return self.body(x) + (self.late(x) if self.calls > 2 else 0)


@pytest.mark.parametrize("sync", UNSHARDED)
def test_parameters_first_used_in_a_later_step_are_trained(local: Context, sync):
    x, y = make_data(64)
    est, single = (estimator(s, model=lambda config: Late(), workers=n) for s, n in ((sync, 2), ("ddp", 1)))
    for one in (est, single):
        one.fit(x, y, epochs=2, batch_size=16)
    close(est, single.get_model())


@pytest.mark.parametrize("labels", ["series", "float"])
def test_ignored_labels_are_recognized_in_series_and_floats(local: Context, labels):
    pandas = pytest.importorskip("pandas")
    x, y = make_data(64)
    y[::3] = -100
    column = pandas.Series(y) if labels == "series" else y.astype("f4")
    losses = [estimator(workers=n).fit(x, column, epochs=2, batch_size=16)["loss"] for n in (1, 2)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_sample_weights_may_be_named_columns_of_shards(local: Context):
    x, y = make_data(40)
    weight = np.linspace(0, 2, 40).astype("f4")
    shards = XShards.partition({"x": x, "y": y, "weight": weight})
    one, two = estimator(), estimator()
    one.fit(shards, sample_weight="weight", batch_size=8)
    two.fit(x, y, sample_weight=weight, batch_size=8)
    close(one, two.get_model())
    with pytest.raises(ColumnError, match="sample_weight='wait' is not in data=.*Did you mean 'weight'"):
        estimator().fit(shards, sample_weight="wait")


def test_loss_creators_are_equivalent_to_losses(local: Context):
    x, y = make_data(60)
    options = {"model": lambda config: nn.Linear(6, 1), "metrics": ["accuracy"]}
    by_creator, by_object = (
        estimator(loss=loss, **options) for loss in (lambda config: nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss())
    )
    for est in (by_creator, by_object):
        est.fit(x, y.astype("f4"), batch_size=20, class_weight={1: 2.0})
    assert by_creator.evaluate(x, y.astype("f4")) == by_object.evaluate(x, y.astype("f4"))
    assert by_creator.score(x, y.astype("f4")) >= 0


def test_rates_set_before_the_first_step_are_kept(local: Context, tmp_path):
    class Slower(Callback):
        def before_run(self, run):
            for group in run.optimizer.param_groups:
                group["lr"] = 0.003

    x, y = make_data(48)
    first = estimator("server", optimizer=torch.optim.Adam)
    first.fit(x, y, batch_size=16)
    path = first.save(str(tmp_path / "first"))
    for sync in ("ddp", "server"):
        est = estimator(sync, optimizer=torch.optim.Adam).load(path)
        assert est.fit(x, y, batch_size=16, callbacks=[Slower()])["lr"] == [0.003]


def test_the_schedule_continues_after_load_and_set_params(local: Context, tmp_path):
    def cosine(optimizer, config):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)

    x, y = make_data(48)
    whole = estimator(scheduler_creator=cosine)
    rates = whole.fit(x, y, epochs=5, batch_size=16)["lr"]
    first = estimator(scheduler_creator=cosine)
    first.fit(x, y, epochs=2, batch_size=16)
    path = first.save(str(tmp_path / "first"))
    loaded = estimator(scheduler_creator=cosine).load(path)
    assert loaded.fit(x, y, epochs=3, batch_size=16)["lr"] == pytest.approx(rates[2:])
    first.set_params(batch_size=8)
    assert first.seed == whole.seed
    assert first.fit(x, y, epochs=3, batch_size=16)["lr"] == pytest.approx(rates[2:])


@pytest.mark.parametrize("sync", ["ddp", "server"])
def test_loading_only_weights_resets_the_optimizer_on_warm_ranks_too(local: Context, sync, tmp_path):
    x, y = make_data(48)
    warm, cold = (estimator(sync, optimizer=torch.optim.Adam, config={"lr": 0.05}) for _ in range(2))
    warm.fit(x, y, epochs=3, batch_size=16)
    path = warm.save_weights(str(tmp_path / "weights"))
    losses = [est.load(path).fit(x, y, epochs=2, batch_size=16)["loss"] for est in (warm, cold)]
    assert losses[0] == losses[1]
    close(warm, cold.get_model(), rtol=0, atol=0)


def test_a_failing_logger_does_not_discard_a_finished_fit(local: Context):
    class Bad(Logger):
        def end(self, error):
            raise RuntimeError("full disk")

    class Good(Logger):
        ended = 0

        def end(self, error):
            self.ended += 1

    x, y = make_data(48)
    est, good = estimator(), Good()
    with pytest.raises(RuntimeError, match="full disk"):
        est.fit(x, y, batch_size=16, callbacks=[good, Bad()])
    assert (est.epoch, good.ended) == (1, 1)
    assert est._learned.state is not None


def test_torchmetrics_are_exact_and_survive_a_checkpoint_within_an_epoch(local: Context, tmp_path):
    torchmetrics = pytest.importorskip("torchmetrics")
    x, y = make_data(66)
    metrics = [
        torchmetrics.Accuracy(task="multiclass", num_classes=2),
        torchmetrics.AUROC(task="multiclass", num_classes=2),
    ]
    whole = estimator(metrics=metrics)
    expected = whole.fit(x, y, epochs=1, batch_size=16)
    first = estimator(metrics=metrics, model_dir=str(tmp_path))
    first.fit(x, y, max_steps=3, batch_size=16, checkpoint_trigger=SeveralIteration(3))
    second = estimator(metrics=metrics)
    history = second.fit(x, y, epochs=1, batch_size=16, resume=Path(tmp_path))
    for name in ("accuracy", "auc"):
        assert history[name] == pytest.approx(expected[name])
    plain = estimator(metrics=["accuracy", "auc"]).load(second.save(str(tmp_path / "saved")))
    assert plain.evaluate(x, y) == pytest.approx(second.evaluate(x, y))
    with pytest.raises(WorkerError, match="Resume with the same metrics"):
        estimator(metrics=["mae"]).fit(x, y, epochs=1, batch_size=16, resume=str(tmp_path / "checkpoint-3"))
    with pytest.raises(ArgumentError, match="resume=3: expected True or the path"):
        estimator().fit(x, y, resume=3)


def test_resuming_a_finished_run_changes_nothing(local: Context):
    x, y = make_data(64)
    est = estimator()
    est.fit(x, y, batch_size=16, max_steps=6)
    before = est.epoch, est.step, est._learned.position.batch
    assert len(est.fit(x, y, epochs=1, batch_size=16, resume=True)) == 0
    assert (est.epoch, est.step, est._learned.position.batch) == before


def test_early_stopping_is_reset_in_a_second_fit(local: Context):
    x, y = make_data(64)
    stop = EarlyStopping("loss", patience=1, restore_best=True)
    est = estimator()
    est.fit(x, y, epochs=3, batch_size=16, callbacks=[stop])
    first = stop.best
    est.set_params(config__lr=30.0)
    history = est.fit(x, y, epochs=6, batch_size=16, callbacks=[stop])
    assert stop.best == min(history["loss"]) != first


def test_sharding_supports_models_with_tied_weights(local: Context):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
            self.head = nn.Linear(6, 2)
            self.layers[1].weight = self.layers[0].weight

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tanh()
            return self.head(x)

    x, y = make_data(50)
    est = estimator("sharded", model=lambda config: Tied())
    est.fit(x, y, epochs=2, batch_size=16)
    close(est, alone(x, y, _step, model=lambda config: Tied()), rtol=1e-4, atol=1e-5)


def _step(model, xs, ys, rows):
    nn.functional.cross_entropy(model(xs), ys).backward()


def test_incomplete_checkpoints_are_overwritten(local: Context, tmp_path):
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    (folder / "arrays-0123456789ab.safetensors").write_bytes(b"incomplete")
    est = estimator(model_dir=str(tmp_path))
    est.fit(*make_data(64), max_steps=2, batch_size=16, checkpoint_trigger=2)
    assert estimator().load_orca_checkpoint(str(tmp_path)).step == 2
