"""Resuming a run: what is logged, when it fails for good, and from which folder and backend it continues."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, WorkerError
from orca.callbacks import Callback, CSVLogger, JSONLLogger
from orca.context import Context
from orca.testing.comparing import same_state
from orca.triggers import EveryEpoch, SeveralIteration
from tests.conformance.models import make_data
from tests.conformance.torch_cases import Network


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
    same_state(second, whole, True, "after resuming")
    # From memory as well, and from a path on another backend.
    first.fit(x, y, batch_size=8, epochs=3, resume=True)
    same_state(first, whole, True, "after resuming")
    third = estimator("parameter_server")
    third.fit(x, y, batch_size=8, epochs=3, resume=f"{folder}/checkpoint-20")
    for key, value in third.get_state_dict().items():
        np.testing.assert_allclose(value.numpy(), whole.get_state_dict()[key].numpy(), rtol=1e-4, atol=1e-5)


def test_resume_with_other_data_is_rejected_with_both_row_counts(local: Context, tmp_path):
    x, y = make_data(64)
    est = estimator("torch_distributed", model_dir=str(tmp_path))
    est.fit(x, y, batch_size=8, max_steps=3, checkpoint_trigger=EveryEpoch())
    with pytest.raises(WorkerError, match="step 3 of an epoch over 64 rows with batch_size=8; now there are 60 rows"):
        est.fit(x[:60], y[:60], batch_size=8, resume=True)


def test_an_epoch_is_resumed_in_its_own_order(local: Context, tmp_path):
    x, y = make_data(64)
    est = estimator("torch_distributed", model_dir=str(tmp_path))
    est.fit(x, y, batch_size=8, max_steps=3, checkpoint_trigger=EveryEpoch(), shuffle="global")
    with pytest.raises(WorkerError, match=r"shuffle='global'; now it is shuffle=True.*Resume with shuffle='global'"):
        est.fit(x, y, batch_size=8, resume=True)
    est.fit(x, y, batch_size=8, epochs=1, resume=True, shuffle="global")
    whole = estimator("torch_distributed")
    whole.fit(x, y, batch_size=8, epochs=1, shuffle="global")
    for key, value in est.get_state_dict().items():
        np.testing.assert_array_equal(value.numpy(), whole.get_state_dict()[key].numpy())
