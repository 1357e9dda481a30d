"""Interrupts in quick succession: the ranks end, and no answer of an old call is taken for a new one."""

from __future__ import annotations

import time

import pytest

from orca.context import Context
from orca.core.interrupts import run_to_end
from orca.launch.gang import Gang
from tests.programs import run

TWICE = """
import os, signal, threading, time
import orca
from orca.testing.leftovers import look, settle

def wait_long(context):
    time.sleep(60)
    return "old"

def answer(context, value):
    return value

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a program that a shell runs in the background
gang = orca.init_orca_context(cores=2).gang(2)
assert gang.call(answer, 1) == [1, 1]
before = look()
sent = threading.Event()

def interrupt():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep({gap})
    os.kill(os.getpid(), signal.SIGINT)
    sent.set()

threading.Thread(target=interrupt).start()
try:
    try:
        gang.call(wait_long)
    finally:
        sent.wait()
        time.sleep(0.2)
except KeyboardInterrupt:
    print("interrupted")
assert not gang.running
assert len(settle(before).ranks) == 1, "only the process that forks ranks remains"
print(gang.call(answer, 2))
gang.stop()
after = settle(before)
print(sorted(after.files - before.files), sorted(after.ports - before.ports))
"""


@pytest.mark.parametrize("gap", [0.0, 0.001, 0.005, 0.02, 0.05])
def test_two_interrupts_end_the_ranks_and_the_next_call_works(gap: float):
    assert run(TWICE.format(gap=gap)).splitlines() == ["interrupted", "[2, 2]", "[] []"]


def report_then_answer(context, seconds: float, value: str) -> str:
    context.emit("started")
    time.sleep(seconds)
    return value


def test_an_interrupt_before_the_cleanup_cannot_mix_up_two_calls(local: Context, monkeypatch: pytest.MonkeyPatch):
    gang = local.gang(2)

    def interrupt(event: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Gang, "_end", lambda self, force: None)  # as if a second interrupt had come first
        with pytest.raises(KeyboardInterrupt):
            gang.call(report_then_answer, 0.2, "old", on_event=interrupt)
    time.sleep(0.4)  # by now the ranks have sent the old answer
    assert gang.call(report_then_answer, 0.0, "new") == ["new", "new"]


def test_messages_of_an_earlier_call_are_dropped(local: Context):
    gang = local.gang(2)
    assert gang.call(report_then_answer, 0.0, "first") == ["first", "first"]
    for rank in range(2):
        gang._inbox.put((rank, ("result", 1, b"not even a pickle")))
        gang._inbox.put((rank, ("event", 1, "old")))
    events: list[object] = []
    assert gang.call(report_then_answer, 0.0, "second", on_event=events.append) == ["second", "second"]
    assert events == ["started", "started"]


def test_errors_of_the_work_are_raised():
    def fail() -> None:
        raise ZeroDivisionError("as expected")

    with pytest.raises(ZeroDivisionError, match="as expected"):
        run_to_end(fail)
