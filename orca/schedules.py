"""Learning rate schedules with the names and formulas of BigDL: arithmetic only, for any framework.

`Poly`, `Exponential`, `Step`, `MultiStep`, `Default`, `Warmup` and `SequentialSchedule` compute the rate of a step,
counted from 0, from the optimizer's own rate: ``schedule.rate(base, step)``. `Plateau` depends on results, so it has a
state. `LearningRate` is the rate of one optimizer over a run, with any of them: a run asks for the rate `at` a step,
calls `observe` after each epoch if `monitor` names a result, and stores `state` in its checkpoints.

>>> rate = LearningRate(0.1, Step(10, 0.5))
>>> rate.at(0), rate.at(10), rate.at(25)
(0.1, 0.05, 0.025)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orca.core.arguments import check_choice, check_count, check_fields, check_flag, check_number, check_text, wrong
from orca.errors import ArgumentError


class Schedule(ABC):
    """The learning rate of each step, from that of the optimizer."""

    @abstractmethod
    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        """Return the learning rate of a step.

        Args:
            base: The optimizer's learning rate, or the one that an earlier schedule has reached.
            step: Number of the step, from 0, over the whole training.
            start: The step at which the schedule begins.
            decay: The optimizer's ``learningrate_decay``, which `Default` uses.
        """


@dataclass(frozen=True)
class Default(Schedule):
    """Divides the rate by 1 + step x ``learningrate_decay``.

    >>> Default().rate(0.1, 10, decay=0.1)
    0.05
    """

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        return base / (1 + (step - start) * decay)


@dataclass(frozen=True)
class Poly(Schedule):
    """Lowers the rate to 0 at `max_iteration`, by a power of the share of steps that are left.

    It counts from the first step of the training also within a `SequentialSchedule`.

    >>> Poly(2, 10).rate(0.1, 5), Poly(2, 10).rate(0.1, 11)
    (0.025, 0.0)
    """

    power: float
    max_iteration: int

    def __post_init__(self) -> None:
        check_fields(self, power=check_number, max_iteration=check_count)

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        left = 1 - step / self.max_iteration
        return base * left**self.power if left > 0 else 0.0


@dataclass(frozen=True)
class Exponential(Schedule):
    """Multiplies the rate by `decay_rate` every `decay_step` steps, gradually or (`stair_case`) at once.

    >>> Exponential(10, 0.25).rate(0.1, 5), Exponential(10, 0.25, stair_case=True).rate(0.1, 5)
    (0.05, 0.1)
    """

    decay_step: int
    decay_rate: float
    stair_case: bool = False

    def __post_init__(self) -> None:
        check_fields(self, decay_step=check_count, decay_rate=_check_factor, stair_case=check_flag)

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        count = (step - start) / self.decay_step
        return float(base * self.decay_rate ** (math.floor(count) if self.stair_case else count))


@dataclass(frozen=True)
class Step(Schedule):
    """Multiplies the rate by `gamma` every `step_size` steps."""

    step_size: int
    gamma: float

    def __post_init__(self) -> None:
        check_fields(self, step_size=check_count, gamma=_check_factor)

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        return float(base * self.gamma ** ((step - start) // self.step_size))


@dataclass(frozen=True)
class MultiStep(Schedule):
    """Multiplies the rate by `gamma` at each of the steps `step_sizes`.

    >>> [MultiStep([2, 5], 0.5).rate(1.0, step) for step in (1, 2, 5)]
    [1.0, 0.5, 0.25]
    """

    step_sizes: Sequence[int]
    gamma: float

    def __post_init__(self) -> None:
        check_fields(self, step_sizes=_check_steps, gamma=_check_factor)

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        return float(base * self.gamma ** sum(step - start >= size for size in self.step_sizes))


@dataclass(frozen=True)
class Warmup(Schedule):
    """Adds `delta` to the rate in each step."""

    delta: float

    def __post_init__(self) -> None:
        check_fields(self, delta=check_number)

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        return base + self.delta * (step - start)


@dataclass(frozen=True)
class Reduction:
    """What a `Plateau` has seen and done."""

    rate: float
    best: float | None = None
    waited: int = 0
    """Epochs without improvement."""
    resting: int = 0
    """Epochs to come that do not count, after a reduction."""


@dataclass(frozen=True)
class Plateau:
    """Multiplies the rate by `factor` after more than `patience` epochs in which a result did not improve.

    >>> plateau = Plateau("Loss", factor=0.5, patience=1)
    >>> reduction = plateau.begin(0.1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0):
    ...     reduction = plateau.after_epoch(reduction, loss)
    >>> reduction.rate
    0.05

    Args:
        monitor: "Loss", "score" (the first validation metric), or the name of a result.
        factor: What the rate is multiplied by, below 1.
        patience: Epochs without improvement that change nothing.
        mode: "min" if smaller results are better, "max" if larger ones are.
        epsilon: How much better a result must be to count as an improvement.
        cooldown: Epochs after a reduction that do not count.
        min_lr: The smallest rate.
    """

    monitor: str
    factor: float = 0.1
    patience: int = 10
    mode: str = "min"
    epsilon: float = 1e-4
    cooldown: int = 0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        check_fields(
            self, monitor=check_text, factor=_check_factor, patience=_check_any_count,
            mode=lambda name, value: check_choice(name, value, ("min", "max")),
            epsilon=check_number, cooldown=_check_any_count, min_lr=check_number,
        )  # fmt: skip
        if self.factor >= 1:
            raise wrong("factor", self.factor, "a number between 0 and 1")

    def begin(self, rate: float) -> Reduction:
        """Return the state before the first epoch."""
        return Reduction(rate)

    def after_epoch(self, before: Reduction, result: float) -> Reduction:
        """Return the state after an epoch with this result."""
        resting = max(0, before.resting - 1)
        waited = 0 if before.resting else before.waited
        if self._improves(result, before.best):
            return Reduction(before.rate, result, 0, resting)
        if resting:
            return Reduction(before.rate, before.best, waited, resting)
        if waited >= self.patience and before.rate > self.min_lr * (1 + 1e-4):
            return Reduction(max(before.rate * self.factor, self.min_lr), before.best, 1, self.cooldown)
        return Reduction(before.rate, before.best, waited + 1, 0)

    def _improves(self, result: float, best: float | None) -> bool:
        if best is None:
            return not math.isnan(result)
        return result < best - self.epsilon if self.mode == "min" else result > best + self.epsilon


class SequentialSchedule(Schedule):
    """Several schedules after each other; each begins with the rate that the one before has reached.

    The last one continues after its own number of steps. A `Plateau` can only be the last one.

    >>> schedule = SequentialSchedule(100).add(Warmup(0.1), 5).add(Exponential(10, 0.5), 1000)
    >>> [round(schedule.rate(0.1, step), 3) for step in (0, 5, 15)]
    [0.1, 0.6, 0.3]

    Args:
        iteration_per_epoch: Steps of an epoch; accepted as BigDL has it, not needed.
    """

    def __init__(self, iteration_per_epoch: int = 1) -> None:
        self.iteration_per_epoch = check_count("iteration_per_epoch", iteration_per_epoch)
        self.parts: list[tuple[Schedule | Plateau, int]] = []

    def add(self, scheduler: Schedule | Plateau, max_iteration: int) -> SequentialSchedule:
        """Append a schedule that lasts a number of steps; return this schedule."""
        if not isinstance(scheduler, Schedule | Plateau) or isinstance(scheduler, SequentialSchedule):
            raise wrong("scheduler", scheduler, "a schedule that is not a sequence, such as Poly(0.5, 1000)")
        if self.parts and isinstance(self.parts[-1][0], Plateau):
            raise ArgumentError("Nothing can be added after a Plateau, whose last rate is not known in advance.")
        self.parts.append((scheduler, check_count("max_iteration", max_iteration)))
        return self

    def part(self, base: float, step: int, decay: float = 0.0) -> tuple[Schedule | Plateau, float, int]:
        """Return the schedule of a step, the rate that it begins with, and the step at which it begins."""
        if not self.parts:
            raise ArgumentError("SequentialSchedule has no schedules: add some with add(schedule, steps).")
        start = 0
        for schedule, length in self.parts[:-1]:
            if step < start + length:
                return schedule, base, start
            assert isinstance(schedule, Schedule)
            base, start = schedule.rate(base, start + length, start, decay), start + length
        return self.parts[-1][0], base, start

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        schedule, base, start = self.part(base, step, decay)
        if isinstance(schedule, Plateau):
            raise ArgumentError("The rate of a Plateau depends on results: use LearningRate.")
        return schedule.rate(base, step, start, decay)

    def __repr__(self) -> str:
        return f"SequentialSchedule({self.iteration_per_epoch})" + "".join(f".add{part!r}" for part in self.parts)


class LearningRate:
    """The learning rate of one optimizer over a run.

    Args:
        base: The optimizer's learning rate.
        schedule: A schedule, a `Plateau`, or None for `Default`.
        decay: The optimizer's ``learningrate_decay``.
    """

    def __init__(self, base: float, schedule: Schedule | Plateau | None = None, decay: float = 0.0) -> None:
        self.base = check_number("learningrate", base)
        self.decay = check_number("learningrate_decay", decay)
        if schedule is not None and not isinstance(schedule, Schedule | Plateau):
            raise wrong("learningrate_schedule", schedule, "a schedule, such as Poly(0.5, 1000), or None")
        self.schedule = schedule or Default()
        self._reduction: Reduction | None = None

    @property
    def constant(self) -> bool:
        """Whether the rate never changes."""
        return isinstance(self.schedule, Default) and not self.decay

    @property
    def monitor(self) -> str | None:
        """The result that `observe` needs after each epoch; None if the rate depends on steps only."""
        parts = self.schedule.parts if isinstance(self.schedule, SequentialSchedule) else [(self.schedule, 0)]
        return next((part.monitor for part, _ in parts if isinstance(part, Plateau)), None)

    def at(self, step: int) -> float:
        """Return the rate of a step, counted from 0 over all runs."""
        schedule, base, start = self._part(step)
        if isinstance(schedule, Schedule):
            return schedule.rate(base, step, start, self.decay)
        if self._reduction is None:
            self._reduction = schedule.begin(base)
        return self._reduction.rate

    def observe(self, step: int, result: float) -> None:
        """Take note of the monitored result of an epoch that ended after `step` steps."""
        schedule, base, _ = self._part(max(0, step - 1))
        if isinstance(schedule, Plateau):
            self._reduction = schedule.after_epoch(self._reduction or schedule.begin(base), result)

    def _part(self, step: int) -> tuple[Schedule | Plateau, float, int]:
        if isinstance(self.schedule, SequentialSchedule):
            return self.schedule.part(self.base, step, self.decay)
        return self.schedule, self.base, 0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to store: nothing, unless results have changed the rate."""
        return {} if self._reduction is None else dict(vars(self._reduction))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._reduction = Reduction(**state) if state else None


def _check_factor(name: str, value: Any) -> float:
    return check_number(name, value, least=0, expected="a number of at least 0")


def _check_any_count(name: str, value: Any) -> int:
    return check_count(name, value, least=0)


def _check_steps(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise wrong(name, value, "a list of numbers of steps")
    return tuple(check_count(name, size) for size in value)


__all__ = [
    "Default", "Exponential", "LearningRate", "MultiStep", "Plateau", "Poly", "Reduction", "Schedule",
    "SequentialSchedule", "Step", "Warmup",
]  # fmt: skip
