"""Triggers are due at their interval."""

from __future__ import annotations

import cloudpickle
import pytest

from orca.errors import ArgumentError
from orca.triggers import EveryEpoch, SeveralIteration, Trigger, as_trigger


def due(trigger, count=6):
    steps = [step for step in range(1, count + 1) if trigger.after_step(step)]
    epochs = [epoch for epoch in range(1, count + 1) if trigger.after_epoch(epoch)]
    return steps, epochs


def test_triggers_are_due_at_their_interval():
    assert due(Trigger()) == ([], [])
    assert due(EveryEpoch()) == ([], [1, 2, 3, 4, 5, 6])
    assert due(EveryEpoch(3)) == ([], [3, 6])
    assert due(SeveralIteration(2)) == ([2, 4, 6], [])


def test_triggers_have_short_forms():
    mine = SeveralIteration(7)
    assert as_trigger(None) is None
    assert as_trigger(mine) is mine
    assert as_trigger(EveryEpoch) == EveryEpoch(1)
    assert as_trigger("epoch") == EveryEpoch(1)
    assert as_trigger(5) == SeveralIteration(5)


def test_custom_triggers_are_accepted():
    class AtTen(Trigger):
        def after_step(self, step):
            return step == 10

    trigger = as_trigger(AtTen)
    assert due(cloudpickle.loads(cloudpickle.dumps(trigger)), 20) == ([10], [])


def test_triggers_name_invalid_arguments():
    for trigger in ("day", 1.5, True, [1], int):
        with pytest.raises(ArgumentError, match="checkpoint_trigger="):
            as_trigger(trigger)
    for interval in (0, -1, 1.5, True, "3"):
        with pytest.raises(ArgumentError, match=r"EveryEpoch: interval=.*at least 1"):
            EveryEpoch(interval)
        with pytest.raises(ArgumentError, match=r"SeveralIteration: interval=.*at least 1"):
            SeveralIteration(interval)
    with pytest.raises(ArgumentError, match="at least 1"):
        as_trigger(0)


def test_trigger_class_that_needs_an_interval_is_refused():
    with pytest.raises(ArgumentError, match="checkpoint_trigger="):
        as_trigger(SeveralIteration)
