"""Criteria that equal losses of Keras."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.criterion import Criterion, same_shape

_EPSILON = 1e-7


class _Plain(Criterion):
    def __init__(self, bigdl_type: str = "float") -> None:
        pass


class CategoricalCrossEntropy(_Plain):
    """The cross entropy of probabilities, which are normalized first; targets are one-hot."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        classes = same_shape(self, output, target).argmax(dim=-1)
        return F.cross_entropy(output.log(), classes)


class CosineProximityCriterion(_Plain):
    """The negative mean of the products of normalized outputs and targets."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        first, second = _normalized(output), _normalized(same_shape(self, output, target))
        return -(first * second).mean()


def _normalized(x: torch.Tensor) -> torch.Tensor:
    return x * x.square().sum(dim=-1, keepdim=True).clamp(min=1e-12).rsqrt()


class MeanAbsolutePercentageCriterion(_Plain):
    """The mean of absolute differences in percent of the target."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        return 100.0 * ((output - target).abs() / target.abs().clamp(min=_EPSILON)).mean()


class MeanSquaredLogarithmicCriterion(_Plain):
    """The mean of squared differences of log(1 + x)."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        return F.mse_loss((output.clamp(min=_EPSILON) + 1).log(), (target.clamp(min=_EPSILON) + 1).log())


class KullbackLeiblerDivergenceCriterion(_Plain):
    """The Kullback-Leibler divergence of probabilities, per row."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        # Outputs above 1 keep their gradient unless the target is above 1 too; those below 1e-7 lose it.
        lost = ((output > 1) & (target > 1)) | (output < _EPSILON)
        clipped = output + (output.clamp(_EPSILON, 1.0) - output).detach()
        clipped = torch.where(lost, clipped.detach(), clipped)
        truth = target.clamp(_EPSILON, 1.0)
        total = (truth * (truth / clipped).log()).sum()
        result: torch.Tensor = total / (1 if output.ndim == 1 else output.shape[0])
        return result


class PoissonCriterion(_Plain):
    """The mean of x - y * log(x)."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        result: torch.Tensor = (output - target * (output + _EPSILON).log()).mean()
        return result
