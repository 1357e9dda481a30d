"""Triggers: when, in the course of a run, a checkpoint is due."""

from __future__ import annotations

from dataclasses import dataclass

from orca.errors import ArgumentError


class Trigger:
    """Says after a step or an epoch whether something is due; has to say the same on every rank."""

    def after_step(self, step: int) -> bool:
        """Whether it is due after this step (counted from 1 over all fits)."""
        return False

    def after_epoch(self, epoch: int) -> bool:
        """Whether it is due after this epoch (counted from 1)."""
        return False


@dataclass(frozen=True)
class EveryEpoch(Trigger):
    """Due after every epoch, or after every `interval` epochs.

    >>> [EveryEpoch(2).after_epoch(epoch) for epoch in (1, 2, 3, 4)]
    [False, True, False, True]
    """

    interval: int = 1

    def __post_init__(self) -> None:
        _check("EveryEpoch", self.interval)

    def after_epoch(self, epoch: int) -> bool:
        return epoch % self.interval == 0


@dataclass(frozen=True)
class SeveralIteration(Trigger):
    """Due after every `interval` steps.

    >>> SeveralIteration(50).after_step(100)
    True
    """

    interval: int

    def __post_init__(self) -> None:
        _check("SeveralIteration", self.interval)

    def after_step(self, step: int) -> bool:
        return step % self.interval == 0


def as_trigger(given: object) -> Trigger | None:
    """What a user gives as ``checkpoint_trigger=``: a trigger, a class of one, None, "epoch" or a number of steps."""
    if given is None or isinstance(given, Trigger):
        return given
    if isinstance(given, type) and issubclass(given, Trigger) and given is not SeveralIteration:
        return given()
    if given == "epoch":
        return EveryEpoch()
    if isinstance(given, int) and not isinstance(given, bool):
        return SeveralIteration(given)
    raise ArgumentError(
        f"checkpoint_trigger={given!r}: expected orca.triggers.EveryEpoch(), SeveralIteration(n), a number of "
        "steps or None."
    )


def _check(name: str, interval: object) -> None:
    if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
        raise ArgumentError(f"{name}({interval!r}): expected a whole number of at least 1.")
