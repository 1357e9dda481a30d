"""The base of all criteria: a loss that follows BigDL's formula, with what is needed to combine it across ranks."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from orca.backends.bigdl.tables import leaves, to_arrays, to_tensors
from orca.errors import DataError


class LossModule(nn.Module):  # type: ignore[misc]
    """The torch module of a criterion: `forward(output, target)` returns one number."""

    def __init__(self, criterion: Criterion) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, output: Any, target: Any) -> torch.Tensor:
        return self.criterion.loss(output, target)


class Criterion:
    """A loss.

    A subclass computes in `loss`. Labels are as in BigDL: class numbers count from 1.
    """

    reduction: Literal["mean", "sum"] = "mean"
    """Whether the loss is the mean over the rows of a step or their sum."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        """Return the loss for tensors or lists of tensors."""
        raise NotImplementedError(f"{type(self).__name__} does not define loss().")

    def loss_module(self) -> nn.Module:
        """Return the loss as a torch module."""
        return LossModule(self)

    def row_weight(self, target: Any) -> torch.Tensor | None:
        """Return what each row contributes to the denominator of the mean; None if that is 1 for each."""
        return None

    def label_rule(self) -> tuple[int, int | None] | None:
        """Return the smallest and, if known, the largest class number of a label; None if labels are values."""
        return None

    def forward(self, input: Any, target: Any) -> float:
        """Return the loss of arrays.

        Args:
            input: The output of a model: an array, or a list of arrays.
            target: The labels.
        """
        return float(self.loss(to_tensors(input, "output"), to_tensors(target, "target")))

    def backward(self, input: Any, target: Any) -> Any:
        """Return the gradient of the loss of arrays.

        Args:
            input: The output of a model: an array, or a list of arrays.
            target: The labels.
        """
        tensors = to_tensors(input, "output")
        inputs = [leaf.requires_grad_(True) for leaf in leaves(tensors)]
        value = self.loss(tensors, to_tensors(target, "target"))
        grads = torch.autograd.grad(value, inputs, allow_unused=True) if value.requires_grad else [None] * len(inputs)
        filled = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]
        return to_arrays(filled if isinstance(tensors, list) else filled[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def same_shape(criterion: Criterion, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the target in the output's shape; raise if they differ by more than a last dimension of one."""
    if output.shape == target.shape:
        return target
    if output.numel() == target.numel() and output.shape[:1] == target.shape[:1]:
        if output.shape in (target.shape + (1,), target.shape[:-1]):
            return target.reshape(output.shape)
    raise DataError(
        f"The output has shape {tuple(output.shape)}, the target {tuple(target.shape)}; {type(criterion).__name__} "
        "needs equal shapes."
    )
