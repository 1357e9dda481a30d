"""Optimizers, triggers, summaries and validation methods with the names of ``bigdl.optim.optimizer``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as v1

from orca.callbacks import Callback, Run
from orca.errors import ArgumentError
from orca.loggers import TensorBoard
from orca.tfpark.adamax import AdamaxOptimizer
from orca.triggers import EveryEpoch, SeveralIteration

# -- optimizers


class OptimMethod:
    """An optimizer by its BigDL name; `create` returns that of ``tf.train``."""

    def __init__(self, create: Callable[[], Any], decay: float = 0.0) -> None:
        if decay:
            raise ArgumentError(
                f"learningrate_decay={decay}: not supported. Give TFOptimizer an optimizer of tf.train with "
                "tf.train.inverse_time_decay as its learning rate."
            )
        self.create = create


def Adam(
    learningrate: float = 1e-3, learningrate_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> OptimMethod:  # fmt: skip
    """Adam, as ``tf.train.AdamOptimizer``."""
    return OptimMethod(lambda: v1.train.AdamOptimizer(learningrate, beta1, beta2, epsilon), learningrate_decay)


def SGD(
    learningrate: float = 1e-3, learningrate_decay: float = 0.0, momentum: float = 0.0, nesterov: bool = False
) -> OptimMethod:
    """Stochastic gradient descent, with momentum if it is not zero."""
    if momentum:
        make: Callable[[], Any] = lambda: v1.train.MomentumOptimizer(learningrate, momentum, use_nesterov=nesterov)  # noqa: E731
    else:
        make = lambda: v1.train.GradientDescentOptimizer(learningrate)  # noqa: E731
    return OptimMethod(make, learningrate_decay)


def Adagrad(learningrate: float = 1e-3, learningrate_decay: float = 0.0) -> OptimMethod:
    """Adagrad, as ``tf.train.AdagradOptimizer``."""
    return OptimMethod(lambda: v1.train.AdagradOptimizer(learningrate), learningrate_decay)


def Adadelta(decayrate: float = 0.9, epsilon: float = 1e-10) -> OptimMethod:
    """Adadelta, as ``tf.train.AdadeltaOptimizer`` with a learning rate of 1."""
    return OptimMethod(lambda: v1.train.AdadeltaOptimizer(1.0, decayrate, epsilon))


def RMSprop(
    learningrate: float = 1e-2, learningrate_decay: float = 0.0, decayrate: float = 0.99, epsilon: float = 1e-8
) -> OptimMethod:
    """RMSprop, as ``tf.train.RMSPropOptimizer``."""
    make = lambda: v1.train.RMSPropOptimizer(learningrate, decayrate, epsilon=epsilon)  # noqa: E731
    return OptimMethod(make, learningrate_decay)


def Ftrl(
    learningrate: float = 1e-3, learningrate_power: float = -0.5, initial_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0, l2_regularization_strength: float = 0.0,
) -> OptimMethod:  # fmt: skip
    """FTRL, as ``tf.train.FtrlOptimizer``."""
    numbers = initial_accumulator_value, l1_regularization_strength, l2_regularization_strength
    return OptimMethod(lambda: v1.train.FtrlOptimizer(learningrate, learningrate_power, *numbers))


def Adamax(
    learningrate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-38
) -> OptimMethod:
    """Adamax: Adam with the infinity norm."""
    return OptimMethod(lambda: AdamaxOptimizer(learningrate, beta1, beta2, epsilon))


def optimizer_of(method: Any) -> Any:
    """Return the optimizer of ``tf.train`` for a BigDL name, a dict by prefix, or itself."""
    if isinstance(method, dict):
        return {prefix: optimizer_of(part) for prefix, part in method.items()}
    return method.create() if isinstance(method, OptimMethod) else method


# -- when to end


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    epoch: int
    step: int
    loss: float | None = None
    score: float | None = None


class EndTrigger(ABC):
    """Decides when `TFOptimizer.optimize` ends."""

    epochs: int | None = None
    """The number of epochs after which it ends, if only that decides."""
    steps: int | None = None
    """The number of steps after which it ends, if only that decides."""

    @abstractmethod
    def ends(self, progress: Progress) -> bool:
        """Return whether the run has come to its end."""


class MaxEpoch(EndTrigger):
    """Ends after a number of epochs, over all calls of `optimize`.

    >>> MaxEpoch(2).ends(Progress(epoch=1, step=10))
    False
    """

    def __init__(self, max_epoch: int) -> None:
        self.epochs = max_epoch

    def ends(self, progress: Progress) -> bool:
        return self.epochs is not None and progress.epoch >= self.epochs


class MaxIteration(EndTrigger):
    """Ends after a number of steps, over all calls of `optimize`."""

    def __init__(self, max: int) -> None:
        self.steps = max

    def ends(self, progress: Progress) -> bool:
        return self.steps is not None and progress.step >= self.steps


class MinLoss(EndTrigger):
    """Ends once the loss of a step is below a value."""

    def __init__(self, min: float) -> None:
        self._least = min

    def ends(self, progress: Progress) -> bool:
        return progress.loss is not None and progress.loss < self._least


class MaxScore(EndTrigger):
    """Ends once the first validation metric is above a value."""

    def __init__(self, max: float) -> None:
        self._most = max

    def ends(self, progress: Progress) -> bool:
        return progress.score is not None and progress.score > self._most


class TriggerAnd(EndTrigger):
    """Ends once all triggers do."""

    def __init__(self, first: EndTrigger, *other: EndTrigger) -> None:
        self._parts = (first, *other)

    def ends(self, progress: Progress) -> bool:
        return all(part.ends(progress) for part in self._parts)


class TriggerOr(EndTrigger):
    """Ends once one of the triggers does."""

    def __init__(self, first: EndTrigger, *other: EndTrigger) -> None:
        self._parts = (first, *other)

    def ends(self, progress: Progress) -> bool:
        return any(part.ends(progress) for part in self._parts)


class EndCallback(Callback):
    """Stops a run when a trigger says so."""

    def __init__(self, trigger: EndTrigger, score: str | None = None) -> None:
        self._trigger, self._score = trigger, score

    def after_batch(self, run: Run) -> None:
        if self._trigger.ends(Progress(run.epoch - 1, run.step, run.loss)):
            run.stop("the end trigger")

    def after_epoch(self, run: Run) -> None:
        score = run.record.get(f"val_{self._score}") if self._score else None
        if self._trigger.ends(Progress(run.epoch, run.step, run.record.get("loss"), score)):
            run.stop("the end trigger")


# -- summaries


class TrainSummary(TensorBoard):
    """Writes the values of training for TensorBoard, to ``log_dir/app_name/train``."""

    split = "train"

    def __init__(self, log_dir: str, app_name: str) -> None:
        super().__init__(log_dir, app_name)

    def read_scalar(self, tag: str) -> list[tuple[int, float, float]]:
        """Return (step, value, time) of "Loss", "LearningRate", "Throughput" or a metric."""
        names = {"LearningRate": "lr", "Throughput": "rows_per_s"}
        return list(self.summary(self.split, names.get(tag, tag)))

    def set_summary_trigger(self, name: str, trigger: Any) -> TrainSummary:
        """Accept a trigger for a value; all values are written for each step or epoch."""
        return self


class ValidationSummary(TrainSummary):
    """Writes the values of validation for TensorBoard, to ``log_dir/app_name/validation``."""

    split = "validation"


# -- validation methods


class ValidationMethod(ABC):
    """A metric of one output and one label, as a tensor with one value per row."""

    name = ""

    @abstractmethod
    def tensor(self, output: Any, label: Any, loss: Any) -> Any:
        """Return the tensor of the metric."""


class Top1Accuracy(ValidationMethod):
    """The share of rows whose label is the class with the greatest output."""

    name = "Top1Accuracy"
    most = 1

    def tensor(self, output: Any, label: Any, loss: Any) -> Any:
        classes = v1.cast(v1.reshape(label, [-1]), v1.int32)
        return v1.cast(v1.nn.in_top_k(v1.cast(output, v1.float32), classes, self.most), v1.float32)


class Top5Accuracy(Top1Accuracy):
    """The share of rows whose label is among the five classes with the greatest outputs."""

    name = "Top5Accuracy"
    most = 5


class MAE(ValidationMethod):
    """The mean of the absolute differences."""

    name = "MAE"

    def tensor(self, output: Any, label: Any, loss: Any) -> Any:
        difference = v1.abs(v1.reshape(output, v1.shape(label)) - v1.cast(label, output.dtype))
        return v1.reduce_mean(v1.reshape(difference, [v1.shape(difference)[0], -1]), axis=1)


class Loss(ValidationMethod):
    """The loss itself."""

    name = "Loss"

    def tensor(self, output: Any, label: Any, loss: Any) -> Any:
        return loss


__all__ = [
    "MAE", "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "EveryEpoch", "Ftrl", "Loss", "MaxEpoch", "MaxIteration",
    "MaxScore", "MinLoss", "RMSprop", "SeveralIteration", "Top1Accuracy", "Top5Accuracy", "TrainSummary", "TriggerAnd",
    "TriggerOr", "ValidationSummary",
]  # fmt: skip
