"""Layers that change gradients only: penalties on activations, and reversal."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.layer import Layer
from orca.backends.torch import shares
from orca.core.arguments import check_flag, check_number


class _AddGradient(torch.autograd.Function):  # type: ignore[misc]
    """Returns the input; its gradient is the output's, times a factor, plus a penalty's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, penalty: torch.Tensor, keep: bool) -> torch.Tensor:
        ctx.save_for_backward(penalty)
        ctx.keep = keep
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (penalty,) = ctx.saved_tensors
        return (grad + penalty if ctx.keep else penalty), None, None


def _penalized(x: torch.Tensor, penalty: torch.Tensor, keep: bool = True, mean: bool = False) -> torch.Tensor:
    """Add the gradient of a penalty, which is a sum or a mean over the rows of all ranks."""
    share = shares.of_mean() if mean else shares.of_sum()
    penalty = penalty if share == 1.0 else penalty * share
    result: torch.Tensor = _AddGradient.apply(x, penalty, keep)
    return result


class L1Penalty(Layer):
    """Returns the input, and adds the gradient of its L1 norm.

    Args:
        l1weight: The factor of the norm.
        size_average: Whether it is divided by the number of values.
        provide_output: Whether the gradient of the output is passed too.
    """

    def __init__(
        self, l1weight: float, size_average: bool = False, provide_output: bool = True, bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        self.weight = check_number("l1weight", l1weight)
        self.average = check_flag("size_average", size_average)
        self.keep = check_flag("provide_output", provide_output)

    def compute(self, x: Any) -> torch.Tensor:
        factor = self.weight / x.numel() if self.average else self.weight
        return _penalized(x, factor * x.detach().sign(), self.keep, self.average)


class ActivityRegularization(Layer):
    """Returns the input, and adds the gradient of l1 * |x| + l2 * x².

    Args:
        l1: The factor of the L1 norm.
        l2: The factor of the squared L2 norm.
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0, bigdl_type: str = "float") -> None:
        super().__init__()
        self.l1, self.l2 = check_number("l1", l1), check_number("l2", l2)

    def compute(self, x: Any) -> torch.Tensor:
        value = x.detach()
        return _penalized(x, self.l1 * value.sign() + 2 * self.l2 * value)


class NegativeEntropyPenalty(Layer):
    """Returns the input, probabilities, and adds the gradient of their negative entropy.

    Args:
        beta: The factor of the entropy.
    """

    def __init__(self, beta: float = 0.01, bigdl_type: str = "float") -> None:
        super().__init__()
        self.beta = check_number("beta", beta)

    def compute(self, x: Any) -> torch.Tensor:
        return _penalized(x, self.beta * (x.detach().log() + 1))


class GradientReversal(Layer):
    """Returns the input, and multiplies its gradient by -lambda.

    Args:
        the_lambda: The factor.
    """

    def __init__(self, the_lambda: float = 1.0, bigdl_type: str = "float") -> None:
        super().__init__()
        self.factor = float(the_lambda)

    def compute(self, x: Any) -> torch.Tensor:
        return x.detach() - self.factor * (x - x.detach())
