"""An interrupt ends fit and its ranks."""

from __future__ import annotations

import os
import signal
import threading
import time

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


@pytest.mark.spark
@pytest.mark.parametrize("runtime", ["spark"], indirect=True)
def test_spark_answers_the_right_question_after_two_interrupts(context: Context):
    java = context._jvm.java.lang

    def interrupt_twice(delay: float, gap: float) -> None:
        for seconds in (delay, gap):
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)

    kept = []  # the tracebacks live on, as in a notebook
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in range(20):
            thread = threading.Thread(target=interrupt_twice, args=(0.05, (0.0005, 0.001, 0.002, 0.01)[number % 4]))
            thread.start()
            for call in (lambda: java.Thread.sleep(150), thread.join, thread.join):
                try:
                    call()
                except KeyboardInterrupt as error:
                    kept.append(error)
            assert not thread.is_alive()
            assert [java.Integer.parseInt(str(number + more)) - more for more in range(3)] == [number] * 3
    finally:
        signal.signal(signal.SIGINT, previous)
    assert kept
