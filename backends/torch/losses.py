"""Wraps a user's loss: the targets it expects, the denominator of its mean, and the weights of rows."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from orca.backends.torch.tensors import first_length, tensor
from orca.errors import ArgumentError, DataError
from orca.shards.checks import LabelRules, LargestClass, Rules

# Losses that compare output and target elementwise: they expect floats of the same shape.
_ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
)


class ExactLoss(nn.Module):  # type: ignore[misc]
    """A loss that says how its value combines over ranks; a base for losses that are not torch's own."""

    reduction: str = "mean"
    """"mean", or "sum" for the sum over the rows of a step."""

    def prepare(self, target: torch.Tensor) -> torch.Tensor:
        """Return labels in the form that `forward` takes."""
        return target

    def row_weight(self, target: Any) -> torch.Tensor | None:
        """Return the weight of each target in the mean; None if all rows count alike."""
        return None

    def is_uneven(self, labels: Any) -> bool:
        """Return whether the mean over rows with these labels, an array, is a weighted one."""
        return False

    def label_rules(self, classes: int | None) -> Rules:
        """Return what the loss accepts as labels of a model with a number of classes, if that is known."""
        return {}


def label_rules(loss: Any, classes: int | None = None) -> Rules:
    """Return what a loss accepts as labels of a model with a number of classes, if that is known."""
    name = type(loss).__name__
    if isinstance(loss, ExactLoss):
        return loss.label_rules(classes)
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        if classes is None and loss.weight is not None:
            classes = len(loss.weight)
        return {"": LabelRules(name, classes=True, count=classes, ignore=loss.ignore_index)}
    if isinstance(loss, nn.BCEWithLogitsLoss | nn.BCELoss):
        return {"": LabelRules(name, probabilities=True, strict=isinstance(loss, nn.BCELoss))}
    return {}


class Loss:
    """Computes the loss over rows, and the weights that combine the values of several ranks exactly."""

    def __init__(self, loss: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.own = loss
        self._loss = loss.to(device) if isinstance(loss, nn.Module) else loss
        self._dtype, self._device = dtype, device
        self._by_class = isinstance(loss, nn.NLLLoss | nn.CrossEntropyLoss)
        self._exact = loss if isinstance(loss, ExactLoss) else None
        self._uneven = self._by_class and (loss.weight is not None or loss.ignore_index != -100)
        self.sums = isinstance(loss, nn.Module) and getattr(loss, "reduction", "mean") == "sum"
        """Whether the loss is the sum over the rows, and not their mean."""
        self._per_row: Any = None
        self.largest: LargestClass | None = None
        """The largest class of this rank's labels, to be compared with the model's output."""

    def ignores(self, labels: Any) -> bool:
        """Whether the loss ignores or weights some of these labels, so that its mean is not the mean over all rows."""
        if self._exact is not None:
            return labels is not None and self._exact.is_uneven(labels)
        if not self._by_class or labels is None or isinstance(labels, dict | list | tuple):
            return False
        return bool((np.asarray(labels) == self._loss.ignore_index).any())

    def expect_ignored(self) -> None:
        """Expect ignored or weighted labels, because some rank has them."""
        self._uneven = True

    def target(self, array: Any) -> torch.Tensor:
        target = tensor(array)
        if self._exact is not None:
            return self._exact.prepare(target.to(self._device))
        if self._by_class and target.ndim == 1:
            target = target.to(torch.int64)  # class numbers, whatever dtype they are stored in
        elif target.is_floating_point() or isinstance(self._loss, _ELEMENTWISE):
            target = target.to(self._dtype)
        elif target.dtype != torch.bool:
            target = target.to(torch.int64)
        return target.to(self._device)

    def count(self, target: Any, rows: int, weights: torch.Tensor | None, exact: bool = False) -> torch.Tensor | None:
        """Return the denominator of the mean; None if it is the number of rows, which all ranks know.

        With `exact`, inspect these targets even if no rank expects ignored labels.
        """
        if self.sums:
            return None
        if self._exact is not None:
            own = self._exact.row_weight(target) if self._uneven or exact else None
            if own is None:
                return torch.tensor(float(first_length(target)), device=self._device) if self._uneven else None
            return own.sum()
        if weights is None and not (self._uneven or (exact and self._by_class)):
            return None
        if self._by_class and isinstance(target, torch.Tensor):
            own = self._class_weights(target)
            return (own if weights is None else own * _beside(weights, own)).sum()
        return weights.sum() if weights is not None else torch.tensor(float(rows), device=self._device)

    def __call__(self, output: Any, target: Any, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean or sum over the rows, weighted if there are weights."""
        target = self._fitted(output, target)
        if weights is not None:
            return self._weighted(output, target, weights)
        loss = self._loss(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise DataError(
                f"The loss returned {tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__}; "
                'expected one number, the mean over the rows (reduction="mean") or their sum ("sum").'
            )
        return loss

    def _weighted(self, output: Any, target: Any, weights: torch.Tensor) -> torch.Tensor:
        if self._per_row is None:
            self._per_row = unreduced(self._loss)
        values = self._per_row(output, target)
        if self.sums:
            return (values * _beside(weights, values)).sum()
        if self._by_class and isinstance(target, torch.Tensor):
            own = self._class_weights(target)
            return (values * _beside(weights, values)).sum() / (own * _beside(weights, own)).sum()
        values = values.reshape(len(weights), -1).mean(dim=1)
        return (values * weights).sum() / weights.sum()

    def _class_weights(self, target: torch.Tensor) -> torch.Tensor:
        """Return the weight of each target in a class-weighted mean."""
        if target.is_floating_point():
            # For class probabilities as targets, torch divides by the number of rows whatever the weights.
            return torch.ones((target.shape[0], *target.shape[2:]), dtype=self._dtype, device=self._device)
        valid = target != self._loss.ignore_index
        if self._loss.weight is None:
            return valid.to(self._dtype)
        return (self._loss.weight[torch.where(valid, target, 0)] * valid).to(self._dtype)

    def _fitted(self, output: Any, target: Any) -> Any:
        """Reshape the target to the output's shape if they differ only by a dimension of one."""
        if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
            return target
        if isinstance(self._loss, _ELEMENTWISE) and output.shape != target.shape:
            # (n,) against (n, 1) would silently broadcast to (n, n) and train on nonsense.
            if output.numel() != target.numel() or output.shape[0] != target.shape[0]:
                raise DataError(
                    f"The model's output has shape {tuple(output.shape)}, the labels {tuple(target.shape)}; "
                    f"{type(self._loss).__name__} needs the same number of values per row in both."
                )
            return target.reshape(output.shape)
        if self.largest is not None and output.ndim >= 2:
            self.largest.check(output.shape[1])
            self.largest = None
        if self._by_class and not target.is_floating_point() and output.ndim >= 2:
            expected = (output.shape[0], *output.shape[2:])
            if target.shape != expected and target.numel() == output.numel() // max(output.shape[1], 1):
                return target.reshape(expected)  # (n, 1) labels, common for a table column
            if target.shape != expected:
                raise DataError(
                    f"The model's output has shape {tuple(output.shape)} (rows, classes), the labels "
                    f"{tuple(target.shape)}; {type(self._loss).__name__} needs class numbers of shape {expected}."
                )
        if target.is_floating_point() and output.shape == (*target.shape, 1):
            return target.unsqueeze(-1)
        return target


def unreduced(loss: Any) -> Any:
    """Return the loss without reduction, one value per row; raise if it does not support that."""
    if isinstance(loss, nn.Module) and not isinstance(loss, ExactLoss) and hasattr(loss, "reduction"):
        twin = copy.deepcopy(loss)
        twin.reduction = "none"
        return twin
    try:
        named = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        named = False
    if named:
        return functools.partial(loss, reduction="none")
    raise ArgumentError(
        "sample_weight= and class_weight= need a loss that can return one value per row: a torch loss module, or a "
        'function with an argument reduction= that accepts "none".'
    )


def class_weights(target: Any, table: Mapping[int, float], dtype: torch.dtype) -> torch.Tensor:
    """Return the weight of every row by its class; classes missing from the table have weight 1."""
    if not isinstance(target, torch.Tensor) or target.ndim > 2:
        raise ArgumentError("class_weight= needs labels with one class number per row.")
    if target.ndim == 2:
        target = target.argmax(dim=1) if target.shape[1] > 1 else target[:, 0]
    classes = target.to(torch.int64)
    size = max(int(classes.max()) + 1, max(int(key) for key in table) + 1, 1)
    weights = torch.ones(size, dtype=dtype)
    for key, weight in table.items():
        weights[int(key)] = float(weight)
    return weights.to(classes.device)[classes.clamp(min=0)]


def _beside(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return weights.reshape(-1, *[1] * (values.ndim - 1))
