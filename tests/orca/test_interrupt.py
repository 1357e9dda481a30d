"""An interrupt ends fit and its ranks."""

from __future__ import annotations

import signal

import pytest
from torch import nn

from orca import Estimator
from orca.context import Context
from orca.testing.leftovers import look, settle
from tests.conformance.models import make_data, model_creator, optimizer_creator


@pytest.mark.slow
def test_interrupting_fit_ends_the_ranks(local: Context):
    before = look()
    est = Estimator.from_torch(
        model=model_creator, optimizer=optimizer_creator, loss=nn.CrossEntropyLoss(),
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
