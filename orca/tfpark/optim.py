"""Optimizers, schedules, triggers, summaries and validation methods with the names of ``bigdl.optim.optimizer``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import tensorflow.compat.v1 as v1

from orca.loggers.summaries import TrainSummary, ValidationSummary
from orca.optim_methods import SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, RMSprop
from orca.schedules import Default, Exponential, MultiStep, Plateau, Poly, SequentialSchedule, Step, Warmup
from orca.triggers import (
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    TriggerAnd,
    TriggerOr,
)


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
    "MAE", "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Default", "EveryEpoch", "Exponential", "Ftrl", "Loss",
    "MaxEpoch", "MaxIteration", "MaxScore", "MinLoss", "MultiStep", "Plateau", "Poly", "RMSprop", "SequentialSchedule",
    "SeveralIteration", "Step", "Top1Accuracy", "Top5Accuracy", "TrainSummary", "TriggerAnd", "TriggerOr",
    "ValidationSummary", "Warmup",
]  # fmt: skip
