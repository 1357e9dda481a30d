"""A user's loss: which targets it wants, what its mean divides by, and how rows are weighted in it."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from orca.backends.torch.tensors import tensor
from orca.errors import ArgumentError, DataError

# Losses that compare output and target number by number: they want floats of the same shape.
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


class Loss:
    """The mean loss over rows, and the weights that put the means of several ranks together exactly."""

    def __init__(self, given: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.given = given.to(device) if isinstance(given, nn.Module) else given
        self._dtype, self._device = dtype, device
        self._by_class = isinstance(given, nn.NLLLoss | nn.CrossEntropyLoss) and given.reduction == "mean"
        self._uneven = self._by_class and (given.weight is not None or given.ignore_index != -100)
        self._single: Any = None

    def ignores(self, labels: Any) -> bool:
        """Whether some label is to be ignored, which makes the loss's mean another one than that over rows."""
        if not self._by_class or labels is None or isinstance(labels, dict | list | tuple):
            return False
        return bool((np.asarray(labels) == self.given.ignore_index).any())

    def expect_ignored(self) -> None:
        """Hear that some rank has labels to be ignored."""
        self._uneven = True

    def target(self, array: Any) -> torch.Tensor:
        made = tensor(array)
        if self._by_class and made.ndim == 1:
            made = made.to(torch.int64)  # classes, whatever type they were stored in
        elif made.is_floating_point() or isinstance(self.given, _ELEMENTWISE):
            made = made.to(self._dtype)
        elif made.dtype != torch.bool:
            made = made.to(torch.int64)
        return made.to(self._device)

    def count(self, target: Any, rows: int, weights: torch.Tensor | None, exact: bool = False) -> torch.Tensor | None:
        """What the mean divides by; None where that is the number of rows, which all ranks know without asking.

        `exact` looks at these very targets even if no rank expects anything uneven.
        """
        if weights is None and not (self._uneven or (exact and self._by_class)):
            return None
        if self._by_class and isinstance(target, torch.Tensor):
            own = self._class_weights(target)
            return (own if weights is None else own * _beside(weights, own)).sum()
        return weights.sum() if weights is not None else torch.tensor(float(rows), device=self._device)

    def __call__(self, output: Any, target: Any, weights: torch.Tensor | None = None) -> torch.Tensor:
        """The mean over the rows, weighted if there are weights."""
        target = self._fitted(output, target)
        if weights is not None:
            return self._weighted(output, target, weights)
        loss = self.given(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise DataError(
                f"The loss gave {tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__}; "
                'expected one number, the mean over the rows (reduction="mean").'
            )
        return loss

    def _weighted(self, output: Any, target: Any, weights: torch.Tensor) -> torch.Tensor:
        if self._single is None:
            self._single = one_by_one(self.given)
        values = self._single(output, target)
        if self._by_class and isinstance(target, torch.Tensor):
            own = self._class_weights(target)
            return (values * _beside(weights, values)).sum() / (own * _beside(weights, own)).sum()
        values = values.reshape(len(weights), -1).mean(dim=1)
        return (values * weights).sum() / weights.sum()

    def _class_weights(self, target: torch.Tensor) -> torch.Tensor:
        """What each target counts in a class-weighted mean."""
        if target.is_floating_point():
            # Class probabilities as targets: torch divides by the rows, whatever the weights.
            return torch.ones((target.shape[0], *target.shape[2:]), dtype=self._dtype, device=self._device)
        valid = target != self.given.ignore_index
        if self.given.weight is None:
            return valid.to(self._dtype)
        return (self.given.weight[torch.where(valid, target, 0)] * valid).to(self._dtype)

    def _fitted(self, output: Any, target: Any) -> Any:
        """The target in the output's shape, where only a dimension of one is between them."""
        if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
            return target
        if isinstance(self.given, _ELEMENTWISE) and output.shape != target.shape:
            # (n,) against (n, 1) would broadcast to (n, n) and train on nonsense without a word.
            if output.numel() != target.numel() or output.shape[0] != target.shape[0]:
                raise DataError(
                    f"The model's output has shape {tuple(output.shape)}, the labels {tuple(target.shape)}; "
                    f"{type(self.given).__name__} needs the same number of values per row in both."
                )
            return target.reshape(output.shape)
        if self._by_class and not target.is_floating_point() and output.ndim >= 2:
            expected = (output.shape[0], *output.shape[2:])
            if target.shape != expected and target.numel() == output.numel() // max(output.shape[1], 1):
                return target.reshape(expected)  # (n, 1) labels, as a column of a table often comes
            if target.shape != expected:
                raise DataError(
                    f"The model's output has shape {tuple(output.shape)} (rows, classes), the labels "
                    f"{tuple(target.shape)}; {type(self.given).__name__} needs class numbers of shape {expected}."
                )
        if target.is_floating_point() and output.shape == (*target.shape, 1):
            return target.unsqueeze(-1)
        return target


def one_by_one(loss: Any) -> Any:
    """The loss without its mean: a value for every row. Raises if it cannot be had."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        single = copy.deepcopy(loss)
        single.reduction = "none"
        return single
    try:
        named = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        named = False
    if named:
        return functools.partial(loss, reduction="none")
    raise ArgumentError(
        "sample_weight= and class_weight= need a loss that can give a value per row: a loss module of torch, or a "
        'function with an argument reduction= that understands "none".'
    )


def class_weights(target: Any, table: Mapping[int, float], dtype: torch.dtype) -> torch.Tensor:
    """The weight of every row by its class; classes that are not named weigh 1."""
    if not isinstance(target, torch.Tensor) or target.ndim > 2:
        raise ArgumentError("class_weight= needs labels that are one class number per row.")
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
