"""Triggers: when a run writes a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from orca.core.arguments import check_count, check_fields, named, wrong
from orca.errors import ArgumentError


class Trigger:
    """Decides after a step or an epoch whether a checkpoint is due. Every rank must decide the same."""

    def after_step(self, step: int) -> bool:
        """Return whether it is due after this step, counted from 1 over all fits."""
        return False

    def after_epoch(self, epoch: int) -> bool:
        """Return whether it is due after this epoch, counted from 1."""
        return False


@dataclass(frozen=True)
class EveryEpoch(Trigger):
    """Due after every epoch, or after every `interval` epochs.

    >>> [EveryEpoch(2).after_epoch(epoch) for epoch in (1, 2, 3, 4)]
    [False, True, False, True]

    Args:
        interval: Number of epochs.

    Raises:
        ArgumentError: If `interval` is not an integer of at least 1.
    """

    interval: int = 1

    def __post_init__(self) -> None:
        check_fields(self, interval=named(f"{type(self).__name__}: interval", check_count))

    def after_epoch(self, epoch: int) -> bool:
        return epoch % self.interval == 0


@dataclass(frozen=True)
class SeveralIteration(Trigger):
    """Due after every `interval` steps.

    >>> SeveralIteration(50).after_step(100)
    True

    Args:
        interval: Number of steps.

    Raises:
        ArgumentError: If `interval` is not an integer of at least 1.
    """

    interval: int

    def __post_init__(self) -> None:
        check_fields(self, interval=named(f"{type(self).__name__}: interval", check_count))

    def after_step(self, step: int) -> bool:
        return step % self.interval == 0


def as_trigger(trigger: object) -> Trigger | None:
    """Read ``checkpoint_trigger=``.

    Args:
        trigger: A trigger, a class of triggers, "epoch", a number of steps, or None.

    Raises:
        ArgumentError: If it is anything else.
    """
    if trigger is None or isinstance(trigger, Trigger):
        return trigger
    if isinstance(trigger, type) and issubclass(trigger, Trigger) and trigger is not SeveralIteration:
        return trigger()
    if isinstance(trigger, str) and trigger == "epoch":
        return EveryEpoch()
    try:
        return SeveralIteration(check_count("checkpoint_trigger", trigger))
    except ArgumentError:
        expected = "orca.triggers.EveryEpoch(), SeveralIteration(n), a number of steps of at least 1, or None"
        raise wrong("checkpoint_trigger", trigger, expected) from None
