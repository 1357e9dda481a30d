"""Optim methods with the names of BigDL: values that each framework turns into its own optimizer.

>>> method = Adam(0.01, learningrate_decay=1.0)
>>> [method.rate().at(step) for step in (0, 1)]
[0.01, 0.005]
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import fsspec

from orca import schedules
from orca.core.arguments import check_count, check_flag, check_number, check_path, shown, wrong
from orca.errors import ArgumentError, DataError
from orca.schedules import LearningRate, Plateau, Schedule

AnySchedule: TypeAlias = Schedule | Plateau | None
DOUBLEMAX = 1.7976931348623157e308
"""BigDL's mark for an argument that was not passed."""


class OptimMethod:
    """How weights are changed by gradients. Attributes have the names of the arguments."""

    def __init__(self) -> None:
        raise ArgumentError("OptimMethod has no formula of its own: use SGD(), Adam() or another method.")

    learningrate: float = 1.0
    learningrate_decay: float = 0.0
    leaningrate_schedule: AnySchedule = None

    def rate(self) -> LearningRate:
        """Return the learning rate over a run."""
        return LearningRate(self.learningrate, self.leaningrate_schedule, self.learningrate_decay)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the method was created with."""
        names = list(inspect.signature(type(self)).parameters)
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "learningrate_schedule" in names and "leaningrate_schedule" not in names:
            given["learningrate_schedule"] = self.leaningrate_schedule
        return given

    def save(self, path: str, overWrite: bool = False) -> OptimMethod:
        """Write the method and its arguments to a JSON file.

        Args:
            path: The file, on any fsspec path.
            overWrite: Whether an existing file is replaced.

        Returns:
            This method.
        """
        path, replaces = check_path("path", path), check_flag("overWrite", overWrite)
        files, place = fsspec.url_to_fs(path)
        if not replaces and files.exists(place):
            raise ArgumentError(f"path={path!r} exists. Give overWrite=True to replace it.")
        with files.open(place, "w") as file:
            json.dump(_plain(self), file)
        return self

    @staticmethod
    def load(path: str, bigdl_type: str = "float") -> OptimMethod:
        """Read what `save` wrote.

        Args:
            path: The file, on any fsspec path.

        Raises:
            DataError: If the file holds no optim method.
        """
        with fsspec.open(check_path("path", path), "rb") as file:
            content = file.read()
        try:
            method = _created(json.loads(content))
        except (ValueError, TypeError, KeyError):
            method = None
        if not isinstance(method, OptimMethod):
            raise DataError(
                f"{path!r} holds no optim method that save() of Orca wrote. BigDL's own files are serialized Java "
                "objects: create the method again with its arguments."
            )
        return method

    def __repr__(self) -> str:
        shown_ones = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        return f"{type(self).__name__}({shown_ones})"


def _numbers(method: OptimMethod, values: Mapping[str, Any], least: float | None = None) -> None:
    """Check numbers and store them as attributes."""
    expected = "a number" if least is None else f"a number of at least {least:g}"
    for name, value in values.items():
        setattr(method, name, check_number(name, value, -math.inf if least is None else least, expected))


class SGD(OptimMethod):
    """Stochastic gradient descent, with momentum if it is not zero.

    Args:
        learningrate: The learning rate.
        learningrate_decay: The rate is divided by 1 + step x this.
        weightdecay: The weights times this are added to the gradient.
        momentum: The share of the earlier direction that is kept.
        dampening: The share of the gradient that is left out; by default as much as `momentum`.
        nesterov: Look ahead along the momentum; needs ``dampening=0.0``.
        leaningrate_schedule: A schedule of `orca.schedules`; also as ``learningrate_schedule``.
        learningrates: Not supported, as are `weightdecays`.
    """

    def __init__(
        self, learningrate: float = 1e-3, learningrate_decay: float = 0.0, weightdecay: float = 0.0,
        momentum: float = 0.0, dampening: float = DOUBLEMAX, nesterov: bool = False,
        leaningrate_schedule: AnySchedule = None, learningrates: Any = None, weightdecays: Any = None,
        bigdl_type: str = "float", *, learningrate_schedule: AnySchedule = None,
    ) -> None:  # fmt: skip
        _numbers(self, {"learningrate": learningrate, "learningrate_decay": learningrate_decay}, 0)
        _numbers(self, {"weightdecay": weightdecay, "momentum": momentum}, 0)
        self.dampening: float = self.momentum if dampening == DOUBLEMAX else check_number("dampening", dampening)
        self.nesterov = check_flag("nesterov", nesterov)
        self.leaningrate_schedule = _schedule(leaningrate_schedule or learningrate_schedule)
        if self.nesterov and not (self.momentum > 0 and self.dampening == 0):
            raise ArgumentError(
                f"nesterov=True needs a momentum and dampening=0.0; received momentum={self.momentum:g} and "
                f"dampening={self.dampening:g} (by default it equals the momentum)."
            )
        for name, value in (("learningrates", learningrates), ("weightdecays", weightdecays)):
            if value is not None:
                raise ArgumentError(
                    f"{name}={shown(value)} is not supported: give a dict of optim methods by the names of layers."
                )

    weightdecay: float
    momentum: float


class Adam(OptimMethod):
    """Adam, with `epsilon` outside of the bias correction, as TensorFlow 1 has it.

    Args:
        learningrate: The learning rate.
        learningrate_decay: The rate is divided by 1 + step x this.
        beta1: The decay of the mean of gradients.
        beta2: The decay of the mean of their squares.
        epsilon: Added to the denominator.
    """

    beta1: float
    beta2: float
    epsilon: float

    def __init__(
        self, learningrate: float = 1e-3, learningrate_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-8, bigdl_type: str = "float", *, learningrate_schedule: AnySchedule = None,
    ) -> None:  # fmt: skip
        _numbers(self, {"learningrate": learningrate, "learningrate_decay": learningrate_decay}, 0)
        _numbers(self, {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}, 0)
        self.leaningrate_schedule = _schedule(learningrate_schedule)


class ParallelAdam(Adam):
    """Adam; BigDL computes this one on several threads, as all methods are computed here.

    Args:
        parallel_num: Accepted and not needed.
    """

    def __init__(
        self, learningrate: float = 1e-3, learningrate_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-8, parallel_num: int = -1, bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        super().__init__(learningrate, learningrate_decay, beta1, beta2, epsilon)


class AdamWeightDecay(OptimMethod):
    """Adam without bias correction and with decoupled weight decay, as BERT is trained.

    Args:
        learning_rate: The learning rate at its peak.
        warmup_portion: The share of steps over which the rate grows from 0; -1 for none.
        total: The number of steps after which the rate is 0; -1 for a constant rate.
        schedule: "linear".
        beta1: The decay of the mean of gradients.
        beta2: The decay of the mean of their squares.
        epsilon: Added to the denominator.
        weight_decay: The weights times this are added to the direction.
    """

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    warmup_portion: float

    def __init__(
        self, learning_rate: float = 1e-3, warmup_portion: float = -1.0, total: int = -1, schedule: str = "linear",
        beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.01,
        bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        _numbers(self, {"learning_rate": learning_rate, "weight_decay": weight_decay}, 0)
        _numbers(self, {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}, 0)
        _numbers(self, {"warmup_portion": warmup_portion})
        self.total = -1 if total == -1 else check_count("total", total)
        if schedule != "linear":
            raise wrong("schedule", schedule, '"linear"')
        self.schedule = schedule
        self.learningrate = self.learning_rate
        self.leaningrate_schedule = _WarmupLinear(self.warmup_portion, self.total) if self.total > 0 else None

    learning_rate: float


class _WarmupLinear(Schedule):
    """Grows to the rate over a share of the steps, then falls to 0."""

    def __init__(self, portion: float, total: int) -> None:
        self._portion, self._total = portion, total

    def rate(self, base: float, step: int, start: int = 0, decay: float = 0.0) -> float:
        done = step / self._total
        return base * (done / self._portion if done < self._portion else max(0.0, 1.0 - done))


class Adagrad(OptimMethod):
    """Divides by the root of the sum of squared gradients.

    Args:
        learningrate: The learning rate.
        learningrate_decay: The rate is divided by 1 + step x this.
        weightdecay: The weights times this are added to the gradient.
    """

    weightdecay: float

    def __init__(
        self, learningrate: float = 1e-3, learningrate_decay: float = 0.0, weightdecay: float = 0.0,
        bigdl_type: str = "float", *, learningrate_schedule: AnySchedule = None,
    ) -> None:  # fmt: skip
        values = {"learningrate": learningrate, "learningrate_decay": learningrate_decay, "weightdecay": weightdecay}
        _numbers(self, values, 0)
        self.leaningrate_schedule = _schedule(learningrate_schedule)


class RMSprop(OptimMethod):
    """Divides by the root of a mean of squared gradients.

    Args:
        learningrate: The learning rate.
        learningrate_decay: The rate is divided by 1 + step x this.
        decayrate: The decay of the mean.
        epsilon: Added to the denominator.
    """

    decayrate: float
    epsilon: float

    def __init__(
        self, learningrate: float = 1e-2, learningrate_decay: float = 0.0, decayrate: float = 0.99,
        epsilon: float = 1e-8, bigdl_type: str = "float", *, learningrate_schedule: AnySchedule = None,
    ) -> None:  # fmt: skip
        _numbers(self, {"learningrate": learningrate, "learningrate_decay": learningrate_decay}, 0)
        _numbers(self, {"decayrate": decayrate, "epsilon": epsilon}, 0)
        self.leaningrate_schedule = _schedule(learningrate_schedule)


class Adadelta(OptimMethod):
    """Adadelta, which has no learning rate.

    Args:
        decayrate: The decay of the means.
        epsilon: Added under both roots.
    """

    decayrate: float
    epsilon: float

    def __init__(self, decayrate: float = 0.9, epsilon: float = 1e-10, bigdl_type: str = "float") -> None:
        _numbers(self, {"decayrate": decayrate, "epsilon": epsilon}, 0)


class Adamax(OptimMethod):
    """Adam with the infinity norm.

    Args:
        learningrate: The learning rate.
        beta1: The decay of the mean of gradients.
        beta2: The decay of their largest value.
        epsilon: Added to gradients for the largest value.
    """

    beta1: float
    beta2: float
    epsilon: float

    def __init__(
        self, learningrate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-38,
        bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        _numbers(self, {"learningrate": learningrate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}, 0)


class Ftrl(OptimMethod):
    """Follow the regularized leader.

    Args:
        learningrate: The learning rate.
        learningrate_power: The power of the sum of squared gradients, at most 0.
        initial_accumulator_value: What that sum begins with.
        l1_regularization_strength: L1 penalty.
        l2_regularization_strength: L2 penalty for stability.
        l2_shrinkage_regularization_strength: L2 penalty on the size of weights.
    """

    learningrate_power: float
    initial_accumulator_value: float
    l1_regularization_strength: float
    l2_regularization_strength: float
    l2_shrinkage_regularization_strength: float

    def __init__(
        self, learningrate: float = 1e-3, learningrate_power: float = -0.5, initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0, l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0, bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        _numbers(self, {"learningrate": learningrate, "initial_accumulator_value": initial_accumulator_value}, 0)
        _numbers(self, {"learningrate_power": learningrate_power})
        strengths = {
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
        }
        _numbers(self, strengths, 0)
        if self.learningrate_power > 0:
            raise wrong("learningrate_power", learningrate_power, "a number of at most 0")


class LBFGS(OptimMethod):
    """Limited-memory BFGS with steps of fixed size, for one worker; each step evaluates the batch several times.

    Args:
        max_iter: Iterations per step.
        max_eval: Evaluations per step; by default 1.25 x `max_iter`.
        tolfun: Stop below this sum of absolute gradients.
        tolx: Stop below this change.
        ncorrection: The number of directions that are kept.
        learningrate: The size of each iteration's step.
        verbose: Accepted and not used.
        linesearch: Not supported, as are `linesearch_options`.
    """

    tolfun: float
    tolx: float

    def __init__(
        self, max_iter: int = 20, max_eval: float = DOUBLEMAX, tolfun: float = 1e-5, tolx: float = 1e-9,
        ncorrection: int = 100, learningrate: float = 1.0, verbose: bool = False, linesearch: Any = None,
        linesearch_options: Any = None, bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        self.max_iter = check_count("max_iter", max_iter)
        self.max_eval = 1.25 * self.max_iter if max_eval == DOUBLEMAX else check_number("max_eval", max_eval)
        _numbers(self, {"tolfun": tolfun, "tolx": tolx, "learningrate": learningrate}, 0)
        self.ncorrection = check_count("ncorrection", ncorrection)
        self.verbose = check_flag("verbose", verbose)
        for name, value in (("linesearch", linesearch), ("linesearch_options", linesearch_options)):
            if value is not None:
                raise ArgumentError(f"{name}={shown(value)} is not supported; steps have a fixed size.")


def _schedule(value: Any) -> Schedule | Plateau | None:
    if value is None or isinstance(value, Schedule | Plateau):
        return value
    raise wrong("leaningrate_schedule", value, "a schedule, such as Poly(0.5, 1000), or None")


def _plain(value: Any) -> Any:
    """Return a method or schedule as a dict of its class name and arguments."""
    if isinstance(value, OptimMethod):
        return {"class": type(value).__name__, **{name: _plain(part) for name, part in value.arguments().items()}}
    if isinstance(value, schedules.SequentialSchedule):
        parts = [[_plain(part), length] for part, length in value.parts]
        return {"class": "SequentialSchedule", "iteration_per_epoch": value.iteration_per_epoch, "parts": parts}
    if isinstance(value, Schedule | Plateau):
        return {"class": type(value).__name__, **vars(value)}
    return value


def _created(plain: Any) -> Any:
    """Reverse `_plain`."""
    if not isinstance(plain, dict):
        return plain
    arguments = {name: _created(value) for name, value in plain.items() if name not in ("class", "parts")}
    name = str(plain["class"])
    create: Any = METHODS.get(name) or {kind: getattr(schedules, kind) for kind in schedules.__all__}[name]
    created = create(**arguments)
    for part, length in plain.get("parts", ()):
        created.add(_created(part), length)
    return created


METHODS = {
    kind.__name__: kind
    for kind in (SGD, Adam, ParallelAdam, AdamWeightDecay, Adagrad, RMSprop, Adadelta, Adamax, Ftrl, LBFGS)
}
"""All methods by name."""

__all__ = [
    "Adadelta", "Adagrad", "Adam", "AdamWeightDecay", "Adamax", "Ftrl", "LBFGS", "OptimMethod", "ParallelAdam",
    "RMSprop", "SGD",
]  # fmt: skip
