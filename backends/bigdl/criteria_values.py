"""Criteria that compare outputs with values."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.criteria_classes import class_weights
from orca.backends.bigdl.criterion import Criterion, same_shape
from orca.backends.bigdl.table_layers import cosine
from orca.core.arguments import check_flag, check_number
from orca.errors import DataError


class Averaged(Criterion):
    """A criterion whose one argument says whether it is a mean or a sum."""

    def __init__(self, size_average: bool = True, bigdl_type: str = "float") -> None:
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def reduce(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean or the sum of values."""
        return values.mean() if self.reduction == "mean" else values.sum()

    def by_row(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        """Return the sum of values, divided by a number of rows if this is a mean."""
        return values.sum() / rows if self.reduction == "mean" else values.sum()


class MSECriterion(Criterion):
    """The mean of squared differences over all values."""

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return F.mse_loss(output, same_shape(self, output, target))


class AbsCriterion(Averaged):
    """The mean of absolute differences over all values.

    Args:
        size_average: Whether to take the mean; otherwise the sum.
    """

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return F.l1_loss(output, same_shape(self, output, target), reduction=self.reduction)


class SmoothL1Criterion(Averaged):
    """The mean of differences d, as d²/2 below 1 and |d| - 1/2 above.

    Args:
        size_average: Whether to take the mean; otherwise the sum.
    """

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return F.smooth_l1_loss(output, same_shape(self, output, target), reduction=self.reduction)


class SmoothL1CriterionWithWeights(Criterion):
    """A smooth L1 loss with weights, for a table of targets, inner weights and outer weights.

    Args:
        sigma: How steep the quadratic part is.
        num: By what the sum is divided; 0 for the number of rows.
    """

    def __init__(self, sigma: float, num: int = 0, bigdl_type: str = "float") -> None:
        self.sigma, self.num = check_number("sigma", sigma), int(num)
        self.reduction = "sum" if self.num > 0 else "mean"

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        values, *weights = target if isinstance(target, list) else [target]
        if len(weights) not in (0, 2):
            raise DataError(
                f"SmoothL1CriterionWithWeights needs a table of 1 or 3 targets; received {1 + len(weights)}."
            )
        difference = output - values.reshape(output.shape)
        if weights:
            difference = difference * weights[0].reshape(output.shape)
        square = self.sigma**2
        size = difference.abs()
        loss = torch.where(size < 1.0 / square, 0.5 * square * size * size, size - 0.5 / square)
        if weights:
            loss = loss * weights[1].reshape(output.shape)
        return loss.sum() / (self.num if self.num > 0 else output.shape[0])


class BCECriterion(Criterion):
    """The binary cross entropy of probabilities, with 1e-12 added inside of the logarithms.

    Args:
        weights: The weights of columns.
        size_average: Whether to take the mean over all values; otherwise the sum.
    """

    def __init__(self, weights: Any = None, size_average: bool = True, bigdl_type: str = "float") -> None:
        self.weights = class_weights(weights)
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        values = -(target * (output + 1e-12).log() + (1 - target) * (1 - output + 1e-12).log())
        if self.weights is not None:
            if output.shape[-1] != len(self.weights):
                raise DataError(f"The output has {output.shape[-1]} columns; there are {len(self.weights)} weights.")
            values = values * self.weights.to(output)
        return values.mean() if self.reduction == "mean" else values.sum()


class MultiLabelSoftMarginCriterion(BCECriterion):
    """The binary cross entropy of outputs before the sigmoid.

    Args:
        weights: The weights of columns.
        size_average: Whether to take the mean over all values; otherwise the sum.
    """

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        weights = None if self.weights is None else self.weights.to(output)
        return F.binary_cross_entropy_with_logits(output, target, weights, reduction=self.reduction)


class DistKLDivCriterion(Averaged):
    """The Kullback-Leibler divergence of logarithms of probabilities, divided by the number of all values.

    Args:
        size_average: Whether to divide; otherwise it is the sum.
    """

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        positive = target > 0
        logarithm = torch.where(positive, target, 1.0).log()
        return self.reduce(torch.where(positive, target * (logarithm - output), 0.0))


class SoftMarginCriterion(Averaged):
    """The mean of log(1 + exp(-y x)) for targets 1 and -1.

    Args:
        size_average: Whether to take the mean over all values; otherwise the sum.
    """

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return self.reduce(F.softplus(-same_shape(self, output, target) * output))


class MarginCriterion(Criterion):
    """The hinge loss for targets 1 and -1.

    Args:
        margin: The margin.
        size_average: Whether to take the mean over all values; otherwise the sum.
        squared: Whether to square the loss of each value.
    """

    def __init__(
        self, margin: float = 1.0, size_average: bool = True, squared: bool = False, bigdl_type: str = "float"
    ) -> None:
        self.margin = check_number("margin", margin)
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"
        self.squared = check_flag("squared", squared)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        values = (self.margin - output * same_shape(self, output, target)).relu()
        values = values.square() if self.squared else values
        return values.mean() if self.reduction == "mean" else values.sum()


class HingeEmbeddingCriterion(Criterion):
    """x for the target 1, max(0, margin - x) for the target -1.

    Args:
        margin: The margin.
        size_average: Whether to take the mean over all values; otherwise the sum.
    """

    def __init__(self, margin: float = 1.0, size_average: bool = True, bigdl_type: str = "float") -> None:
        self.margin = check_number("margin", margin)
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        return F.hinge_embedding_loss(output, target, self.margin, reduction=self.reduction)


class L1Cost(Criterion):
    """The sum of absolute outputs; targets are ignored."""

    reduction = "sum"

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        result: torch.Tensor = output.abs().sum()
        return result


class DotProductCriterion(Averaged):
    """The dot product of outputs and targets.

    Args:
        size_average: Whether to divide it by the number of rows.
    """

    def __init__(self, size_average: bool = False, bigdl_type: str = "float") -> None:
        super().__init__(size_average)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        product = output * same_shape(self, output, target)
        return self.by_row(product, output.shape[0] if output.ndim == 2 else 1)


class PGCriterion(DotProductCriterion):
    """The negative policy gradient, for probabilities of actions and rewards.

    Args:
        size_average: Whether to divide it by the number of rows.
    """

    def __init__(self, sizeAverage: bool = False, bigdl_type: str = "float") -> None:
        super().__init__(check_flag("sizeAverage", sizeAverage))

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return super().loss(-output.log(), target)


class DiceCoefficientCriterion(Criterion):
    """1 - 2 * intersection / union, of each row.

    Args:
        size_average: Whether to divide by the number of rows.
        epsilon: What is added to numerator and denominator.
    """

    def __init__(self, size_average: bool = True, epsilon: float = 1.0, bigdl_type: str = "float") -> None:
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"
        self.epsilon = check_number("epsilon", epsilon)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        target = same_shape(self, output, target)
        if output.ndim == 1:
            output, target = output.unsqueeze(0), target.unsqueeze(0)
        both = 2 * (output * target).sum(dim=1) + self.epsilon
        total = (1 - both / (output.sum(dim=1) + target.sum(dim=1) + self.epsilon)).sum()
        result: torch.Tensor = total / output.shape[0] if self.reduction == "mean" else total
        return result


class KLDCriterion(Averaged):
    """The divergence of normal distributions from the standard one, for a table of means and log-variances.

    Args:
        size_average: Whether to divide by the number of rows.
    """

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        mean, log_variance = output
        values = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
        return self.by_row(values, mean.shape[0])


class GaussianCriterion(Criterion):
    """The negative log-likelihood of targets under normal distributions, for a table of means and log-variances."""

    reduction = "sum"

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        mean, log_variance = output
        square = (target.reshape(mean.shape) - mean).square()
        constant = 0.5 * torch.log(torch.tensor(2 * torch.pi))
        result: torch.Tensor = (constant + 0.5 * log_variance + 0.5 * square / log_variance.exp()).sum()
        return result


class CosineDistanceCriterion(Averaged):
    """1 - the cosine of the angle between outputs and targets.

    Args:
        size_average: Whether to divide by the number of rows.
    """

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        total = (1 - cosine(output, same_shape(self, output, target))).sum()
        if self.reduction == "sum":
            return total
        if output.ndim == 1:
            # BigDL divides the loss of a single row by its length, but not the gradient.
            return total + (total / output.shape[0] - total).detach()
        return total / output.shape[0]
