"""Exact resume: a run that lost a rank and resumed ends bit for bit like an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, WorkerError
from orca.callbacks import Callback, CSVLogger, JSONLLogger
from orca.context import Context
from orca.triggers import EveryEpoch, SeveralIteration
from tests.conformance.models import make_data

STEPS = 100


class Network(nn.Module):
    """Has dropout and batch norm, whose random numbers and statistics a checkpoint must contain.

    It is wide and runs on three ranks, because the last bit of a sum of three numbers depends on their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(0.3), nn.Linear(300, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class KillOnce(Callback):
    """Kills a rank after a step, unless the marker file shows that it already has."""

    acts_on_batches = False

    def __init__(self, step: int, mark: str, rank: int = 1) -> None:
        self.at, self.mark, self.victim = step, mark, rank

    def after_batch(self, run):
        if run.step == self.at and run.rank == self.victim and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


def estimator(backend: str, **more) -> Estimator:
    return Estimator.from_torch(
        model=Network,
        optimizer=torch.optim.Adam,
        loss=nn.CrossEntropyLoss(),
        config={"lr": 0.01},
        metrics=["accuracy", "auc"],
        scheduler_creator=lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 30, gamma=0.5),
        scheduler_step="step",
        seed=11,
        backend=backend,
        **{"workers": 3, **more},
    )


def same(one: Estimator, two: Estimator) -> None:
    for key, value in one.get_state_dict().items():
        np.testing.assert_array_equal(value.numpy(), two.get_state_dict()[key].numpy(), err_msg=key)
    first, second = one._learned.state["optimizer"], two._learned.state["optimizer"]
    for left, right in zip(_leaves(first), _leaves(second), strict=True):
        np.testing.assert_array_equal(left, right)


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in _leaves(tree[key])]
    if isinstance(tree, list):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [] if tree is None else [tree]


def test_automatic_resume_after_a_killed_rank_gives_identical_weights(context: Context, backend, tmp_path):
    # 37 steps per epoch, so the checkpoint of step 50 is in the middle of the second.
    x, y = make_data(37 * 12 - 5)
    whole = estimator(backend)
    expected = whole.fit(x, y, batch_size=12, max_steps=STEPS)
    broken = estimator(backend)
    kill = KillOnce(57, str(tmp_path / "killed"))
    history = broken.fit(
        x, y, batch_size=12, max_steps=STEPS, checkpoint_trigger=SeveralIteration(50), max_failures=1, callbacks=[kill]
    )
    assert os.path.exists(tmp_path / "killed")
    assert broken.step == whole.step == STEPS
    same(whole, broken)
    for name in ("loss", "accuracy", "auc", "lr"):
        assert history[name] == expected[name], name
    assert [record["epoch"] for record in history] == [1, 2, 3]


def test_epochs_that_are_trained_again_are_logged_once(local: Context, tmp_path):
    x, y = make_data(32)
    loggers = [CSVLogger(tmp_path / "log.csv"), JSONLLogger(tmp_path / "log.jsonl", steps=True)]
    # Four steps per epoch: the second epoch has been logged when the third fails and training returns to step 6.
    kill = KillOnce(11, str(tmp_path / "killed"))
    est = estimator("torch_distributed", workers=2)
    options = {"checkpoint_trigger": SeveralIteration(6), "max_failures": 1, "callbacks": [kill, *loggers]}
    history = est.fit(x, y, batch_size=8, epochs=4, **options)
    assert os.path.exists(tmp_path / "killed")
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "1", "2", "3", "4"]
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in entries if "epoch" in entry] == [1, 2, 3, 4]
    assert [entry["step"] for entry in entries if "epoch" not in entry] == list(range(1, 17))
    assert [entry["loss"] for entry in entries if "epoch" in entry] == history["loss"]


def test_more_failures_than_max_failures_raise(local: Context, tmp_path):
    class KillAlways(KillOnce):
        def after_batch(self, run):
            if run.step == self.at and run.rank == self.victim:
                os.kill(os.getpid(), signal.SIGKILL)

    x, y = make_data(80)
    with pytest.raises(WorkerError, match="rank 1 .* died"):
        estimator("torch_distributed").fit(x, y, batch_size=8, epochs=2, max_failures=1, callbacks=[KillAlways(5, "")])


def test_a_stopped_run_resumes_from_its_folder_or_memory_and_on_another_backend(local: Context, tmp_path):
    x, y = make_data(100)
    whole = estimator("torch_distributed")
    whole.fit(x, y, batch_size=8, epochs=3)
    folder = str(tmp_path / "run")
    first = estimator("torch_distributed", model_dir=folder)
    first.fit(x, y, batch_size=8, epochs=3, max_steps=20, checkpoint_trigger=SeveralIteration(20))
    assert os.listdir(folder) == ["checkpoint-20"]
    second = estimator("torch_distributed", model_dir=folder)
    history = second.fit(x, y, batch_size=8, epochs=3, resume=True)
    assert [record["epoch"] for record in history] == [2, 3]
    same(whole, second)
    # From memory as well, and from a path on another backend.
    first.fit(x, y, batch_size=8, epochs=3, resume=True)
    same(whole, first)
    third = estimator("parameter_server")
    third.fit(x, y, batch_size=8, epochs=3, resume=f"{folder}/checkpoint-20")
    for key, value in third.get_state_dict().items():
        np.testing.assert_allclose(value.numpy(), whole.get_state_dict()[key].numpy(), rtol=1e-4, atol=1e-5)


def test_a_state_of_epoch_0_is_loaded(context: Context, backend, tmp_path):
    x, y = make_data(64)
    first = estimator(backend, model_dir=str(tmp_path))
    first.fit(x, y, batch_size=8, epochs=1, max_steps=3, checkpoint_trigger=SeveralIteration(3))
    first._learned = replace(first._learned, epoch=0)
    first.save(str(tmp_path / "zero"))
    second = estimator(backend).load(str(tmp_path / "zero"))
    assert second.epoch == 0
    same(first, second)
    assert second.evaluate(x, y) == first.evaluate(x, y)


def test_a_state_saved_before_any_fit_is_loaded_and_trained_from_epoch_0(local: Context, backend, tmp_path):
    x, y = make_data(64)
    trained = estimator(backend)
    trained.fit(x, y, batch_size=16, epochs=1)
    first = estimator(backend).load_weights(trained.save_weights(str(tmp_path / "weights")))
    second = estimator(backend).load(first.save(str(tmp_path / "zero")))
    assert (second.epoch, second.step) == (0, 0)
    assert second.evaluate(x, y) == trained.evaluate(x, y)
    for est in (first, second):
        history = est.fit(x, y, batch_size=16, epochs=2, resume=True)
        assert (history["epoch"], est.step) == ([1, 2], 8)
    same(first, second)


def test_sharded_replicas_resume_exactly_within_an_epoch(local: Context, tmp_path):
    x, y = make_data(100)
    whole = estimator("torch_distributed", sharded=True)
    expected = whole.fit(x, y, batch_size=16, epochs=2)
    broken = estimator("torch_distributed", sharded=True)
    kill = KillOnce(9, str(tmp_path / "killed"))
    options = {"checkpoint_trigger": SeveralIteration(4), "max_failures": 1, "callbacks": [kill]}
    history = broken.fit(x, y, batch_size=16, epochs=2, **options)
    assert os.path.exists(tmp_path / "killed")
    same(whole, broken)
    assert history["loss"] == expected["loss"]
    # And from files, in the middle of the first epoch.
    folder = str(tmp_path / "run")
    first = estimator("torch_distributed", sharded=True, model_dir=folder)
    first.fit(x, y, batch_size=16, epochs=2, max_steps=4, checkpoint_trigger=SeveralIteration(4))
    second = estimator("torch_distributed", sharded=True)
    second.fit(x, y, batch_size=16, epochs=2, resume=folder)
    same(whole, second)


def test_resume_with_other_data_is_rejected_with_both_row_counts(local: Context, tmp_path):
    x, y = make_data(64)
    est = estimator("torch_distributed", model_dir=str(tmp_path))
    est.fit(x, y, batch_size=8, max_steps=3, checkpoint_trigger=EveryEpoch())
    with pytest.raises(WorkerError, match="step 3 of an epoch over 64 rows with batch_size=8; now there are 60 rows"):
        est.fit(x[:60], y[:60], batch_size=8, resume=True)
