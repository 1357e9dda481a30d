"""Triggers: when a run writes a checkpoint, and when it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from orca.core.arguments import check_count, check_fields, check_number, named, wrong
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


def as_trigger(trigger: object, name: str = "checkpoint_trigger") -> Trigger | None:
    """Read ``checkpoint_trigger=`` or ``validation_trigger=``.

    Args:
        trigger: A trigger, a class of triggers, "epoch", a number of steps, or None.
        name: The argument.

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
        return SeveralIteration(check_count(name, trigger))
    except ArgumentError:
        expected = "orca.triggers.EveryEpoch(), SeveralIteration(n), a number of steps of at least 1, or None"
        raise wrong(name, trigger, expected) from None


# When a run ends


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    epoch: int
    """Epochs completed."""
    step: int
    """Steps completed."""
    loss: float | None = None
    """The loss of the last step or epoch."""
    score: float | None = None
    """The first validation metric of the last validation."""


class EndTrigger(Trigger, ABC):
    """Decides when a run ends. Every rank must decide the same."""

    epochs: int | None = None
    """The number of epochs after which the run ends, if only that decides."""
    steps: int | None = None
    """The number of steps after which the run ends, if only that decides."""
    uses_loss: bool = False
    """Whether the loss of each step decides."""
    needs_score: bool = False
    """Whether it depends on a validation metric."""

    @abstractmethod
    def ends(self, progress: Progress) -> bool:
        """Return whether the run has come to its end."""


class MaxEpoch(EndTrigger):
    """Ends after a number of epochs, over all calls of `optimize`.

    >>> MaxEpoch(2).ends(Progress(epoch=1, step=10))
    False

    Args:
        max_epoch: Number of epochs.
    """

    def __init__(self, max_epoch: int, bigdl_type: str = "float") -> None:
        self.epochs: int = check_count("max_epoch", max_epoch)

    def ends(self, progress: Progress) -> bool:
        return progress.epoch >= self.epochs


class MaxIteration(EndTrigger):
    """Ends after a number of steps, over all calls of `optimize`.

    Args:
        max: Number of steps.
    """

    def __init__(self, max: int, bigdl_type: str = "float") -> None:
        self.steps: int = check_count("max", max)

    def ends(self, progress: Progress) -> bool:
        return progress.step >= self.steps


class MinLoss(EndTrigger):
    """Ends once the loss of a step is below a value.

    Args:
        min: The value.
    """

    uses_loss = True

    def __init__(self, min: float, bigdl_type: str = "float") -> None:
        self.least = check_number("min", min)

    def ends(self, progress: Progress) -> bool:
        return progress.loss is not None and progress.loss < self.least


class MaxScore(EndTrigger):
    """Ends once the first validation metric is above a value.

    Args:
        max: The value.
    """

    needs_score = True

    def __init__(self, max: float, bigdl_type: str = "float") -> None:
        self.most = check_number("max", max)

    def ends(self, progress: Progress) -> bool:
        return progress.score is not None and progress.score > self.most


class _Combined(EndTrigger):
    """Several triggers that decide together."""

    def __init__(self, first: Trigger, *other: Trigger) -> None:
        self.parts = (first, *other)
        for part in self.parts:
            if not isinstance(part, Trigger):
                raise wrong(type(self).__name__, part, "triggers, such as MaxEpoch(2)")
        ends = [part for part in self.parts if isinstance(part, EndTrigger)]
        self.uses_loss = any(part.uses_loss for part in ends)
        self.needs_score = any(part.needs_score for part in ends)

    @abstractmethod
    def joined(self, decisions: Iterable[bool]) -> bool:
        """Return the decision of all triggers."""

    def ends(self, progress: Progress) -> bool:
        return self.joined(isinstance(part, EndTrigger) and part.ends(progress) for part in self.parts)

    def after_step(self, step: int) -> bool:
        return self.joined(part.after_step(step) for part in self.parts)

    def after_epoch(self, epoch: int) -> bool:
        return self.joined(part.after_epoch(epoch) for part in self.parts)


class TriggerAnd(_Combined):
    """Is due, or ends a run, once all triggers are.

    Args:
        first: A trigger.
        other: Further ones.
    """

    def joined(self, decisions: Iterable[bool]) -> bool:
        return all(decisions)


class TriggerOr(_Combined):
    """Is due, or ends a run, once one of the triggers is.

    Args:
        first: A trigger.
        other: Further ones.
    """

    def joined(self, decisions: Iterable[bool]) -> bool:
        return any(decisions)


def as_end_trigger(name: str, trigger: object) -> EndTrigger:
    """Return an argument that says when a run ends.

    Raises:
        ArgumentError: If it is anything else.
    """
    if isinstance(trigger, EndTrigger):
        return trigger
    raise wrong(name, trigger, "a trigger that ends a run, such as MaxEpoch(2) or MaxIteration(100)")
