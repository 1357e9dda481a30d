"""The asynchronous parameter server of torch: staleness, several servers and its state."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from orca.callbacks import Callback
from orca.context import Context
from orca.errors import ArgumentError
from tests.backends.torch_estimators import estimator
from tests.conformance.models import make_data, model_creator


class Slow(nn.Module):
    """Sleeps in every training step of one worker."""

    def __init__(self, seconds: float, rank: int) -> None:
        super().__init__()
        self.body, self.seconds, self.rank = model_creator({}), seconds, rank

    def forward(self, x):
        if self.training and torch.distributed.get_rank() == self.rank:
            time.sleep(self.seconds)
        return self.body(x)


class Clock(Callback):
    """Records in one file per rank when each step ended."""

    acts_on_batches = False

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def after_batch(self, run):
        with open(f"{self.folder}/{run.rank}", "a") as file:
            file.write(f"{run.step} {time.time()}\n")


def times(folder, rank):
    return [float(line.split()[1]) for line in (folder / str(rank)).read_text().splitlines()]


def test_async_workers_run_ahead_by_at_most_the_staleness(local: Context, tmp_path):
    x, y = make_data(160)
    for staleness in (None, 3):
        folder = tmp_path / str(staleness)
        folder.mkdir()
        more = {} if staleness is None else {"staleness": staleness}
        est = estimator("server", mode="async", model=lambda config: Slow(0.08, 1), **more)
        history = est.fit(x, y, epochs=1, batch_size=8, callbacks=[Clock(str(folder))])
        assert history["rows"] == [160]
        fast, slow = times(folder, 0), times(folder, 1)
        assert len(fast) == len(slow) == 20
        if staleness is None:
            # The fast worker finishes all steps while the slow one takes a few.
            assert fast[-1] - fast[0] < 0.5 * (slow[-1] - slow[0])
        else:
            # The fast worker ends a step only after the slow one has ended all but three of the steps before.
            for step in range(4, 20):
                assert fast[step] > slow[step - staleness - 1] - 0.02


def test_async_learns_with_several_servers_and_other_backends_load_its_state(local: Context, tmp_path):
    x, y = make_data(400)
    est = estimator(
        "server", mode="async", servers=2, staleness=2, optimizer=torch.optim.Adam, config={"lr": 0.01},
        metrics=["accuracy"],
    )  # fmt: skip
    history = est.fit(x, y, epochs=12, batch_size=32, validation_data=(x, y))
    assert history["val_accuracy"][-1] > 0.85
    est.save(str(tmp_path / "async"))
    plain = estimator("ddp", optimizer=torch.optim.Adam, config={"lr": 0.01}, metrics=["accuracy"])
    plain.load(str(tmp_path / "async"))
    assert plain.evaluate(x, y)["accuracy"] == pytest.approx(history["val_accuracy"][-1])
    assert plain.fit(x, y, batch_size=32)["loss"][0] < 1.1 * history["loss"][-1]
    again = estimator("server", mode="async", optimizer=torch.optim.Adam, config={"lr": 0.01})
    again.load(str(tmp_path / "async")).fit(x, y, batch_size=32)
    assert "1 server ranks" in again.explain() or "server" in again.explain()
    with pytest.raises(ArgumentError, match="do not run in lockstep; use EveryEpoch"):
        est.fit(x, y, checkpoint_trigger=5, max_failures=1)
