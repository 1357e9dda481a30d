"""Nothing hangs: a rank that raises, is killed or is suspended ends fit within 15 s, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, WorkerError
from orca.context import Context
from tests.conformance.models import make_data, model_creator, optimizer_creator
from tests.leftovers import look, settle

LIMIT_SECONDS = 15.0


class Failing(nn.Module):
    """Fails on one rank in its third forward pass."""

    def __init__(self, how: str, victim: int) -> None:
        super().__init__()
        self.body = nn.Linear(6, 2)
        self.how, self.victim, self.calls = how, victim, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3 and torch.distributed.get_rank() == self.victim:
            print("about to fail:", self.how, time.time())
            time.sleep(0.5)  # lines are sent on a separate thread
            if self.how == "raise":
                raise ZeroDivisionError("the third batch is cursed")
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.how])
        return self.body(x)


def failing(how: str, victim: int) -> Estimator:
    return Estimator.from_torch(
        model=lambda config: Failing(how, victim),
        optimizer=optimizer_creator,
        loss=nn.CrossEntropyLoss(),
        config={"lr": 0.1},
        workers=3,
        seed=0,
    )


@pytest.mark.parametrize(("how", "victim"), [("raise", 1), ("kill", 2), ("stop", 0)])
def test_a_failed_rank_is_named_and_ends_fit_in_time_without_leftovers(context: Context, how, victim):
    x, y = make_data(90)
    # Start everything that is meant to stay (Ray's and Spark's own processes), then record what exists.
    healthy = Estimator.from_torch(
        model=model_creator, optimizer=optimizer_creator, loss=nn.CrossEntropyLoss(), config={"lr": 0.1}, workers=3
    )
    healthy.fit(x, y, batch_size=9)
    healthy.shutdown()
    before = look()
    with pytest.raises(WorkerError) as caught:
        failing(how, victim).fit(x, y, epochs=2, batch_size=9)
    ended = time.time()
    after = settle(before)
    error = caught.value
    (line,) = [line for line in error.log_tail if "about to fail" in line]
    assert ended - float(line.split()[-1]) < LIMIT_SECONDS
    assert error.rank == victim
    assert f"rank {victim}" in str(error)
    assert error.host == os.uname().nodename
    assert victim in error.failures
    if how == "raise":
        assert isinstance(error.failures[victim], ZeroDivisionError)
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert "the third batch is cursed" in str(error)
        assert "in forward" in error.remote_traceback
    elif how == "kill":
        assert "kill" in error.cause
    else:
        assert "stalled" in error.cause
    assert not after.ranks - before.ranks
    assert not after.stopped - before.stopped
    assert not after.ports - before.ports
    assert not after.files - before.files
    history = healthy.fit(x, y, batch_size=9)
    assert np.isfinite(history["loss"]).all()


@pytest.mark.slow
def test_interrupting_fit_ends_the_ranks(local: Context):
    before = look()
    est = Estimator.from_torch(
        model=lambda config: Failing("stop", 99), optimizer=optimizer_creator, loss=nn.CrossEntropyLoss(),
        config={"lr": 0.1}, workers=2,
    )  # fmt: skip
    x, y = make_data(4000)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 4)
        with pytest.raises(KeyboardInterrupt):
            est.fit(x, y, epochs=100_000, batch_size=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    after = settle(before)
    # Only the process that forks ranks remains, for the next fit.
    assert len(after.ranks - before.ranks) <= 1
    assert not after.files - before.files
