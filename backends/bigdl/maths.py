"""Elementary functions and reductions over one dimension."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.activations import Elementwise, Inplace
from orca.backends.bigdl.dimensions import INTMIN, axis
from orca.backends.bigdl.layer import Layer
from orca.core.arguments import check_flag, check_number


class Abs(Elementwise):
    """Computes the absolute value."""

    def compute(self, x: Any) -> torch.Tensor:
        return x.abs()


class Exp(Elementwise):
    """Computes the exponential."""

    def compute(self, x: Any) -> torch.Tensor:
        return x.exp()


class Log(Elementwise):
    """Computes the natural logarithm."""

    def compute(self, x: Any) -> torch.Tensor:
        return x.log()


class Sqrt(Elementwise):
    """Computes the square root."""

    def compute(self, x: Any) -> torch.Tensor:
        return x.sqrt()


class Square(Elementwise):
    """Computes the square."""

    def compute(self, x: Any) -> torch.Tensor:
        return x.square()


class Negative(Inplace):
    """Computes -x."""

    def compute(self, x: Any) -> torch.Tensor:
        return -x


class Power(Layer):
    """Computes (shift + scale * x) ** power.

    Args:
        power: The exponent.
        scale: The factor.
        shift: The summand.
    """

    def __init__(self, power: float, scale: float = 1.0, shift: float = 0.0, bigdl_type: str = "float") -> None:
        super().__init__()
        self.power = check_number("power", power)
        self.scale, self.shift = check_number("scale", scale), check_number("shift", shift)

    def compute(self, x: Any) -> torch.Tensor:
        return (self.shift + self.scale * x).pow(self.power)


class AddConstant(Layer):
    """Adds a constant.

    Args:
        constant_scalar: The constant.
        inplace: Accepted for compatibility.
    """

    def __init__(self, constant_scalar: float, inplace: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.constant = check_number("constant_scalar", constant_scalar)

    def compute(self, x: Any) -> torch.Tensor:
        return x + self.constant


class MulConstant(Layer):
    """Multiplies by a constant.

    Args:
        scalar: The constant.
        inplace: Accepted for compatibility.
    """

    def __init__(self, scalar: float, inplace: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.constant = check_number("scalar", scalar)

    def compute(self, x: Any) -> torch.Tensor:
        return x * self.constant


def _kept(value: torch.Tensor) -> torch.Tensor:
    """Return a reduced vector as a tensor with one value, as BigDL does."""
    return value.reshape(1) if value.ndim == 0 else value


class Max(Layer):
    """Takes the maximum over a dimension.

    Args:
        dim: The dimension, counted from 1.
        num_input_dims: The number of dimensions without the batch.
    """

    def __init__(self, dim: int, num_input_dims: int = INTMIN, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim, self.dims = dim, num_input_dims

    def compute(self, x: Any) -> torch.Tensor:
        return _kept(x.max(dim=axis(self, self.dim, x.ndim, self.dims)).values)


class Min(Layer):
    """Takes the minimum over a dimension.

    Args:
        dim: The dimension, counted from 1.
        num_input_dims: The number of dimensions without the batch.
    """

    def __init__(self, dim: int = 1, num_input_dims: int = INTMIN, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim, self.dims = dim, num_input_dims

    def compute(self, x: Any) -> torch.Tensor:
        return _kept(x.min(dim=axis(self, self.dim, x.ndim, self.dims)).values)


class Sum(Layer):
    """Sums over a dimension.

    Args:
        dimension: The dimension, counted from 1.
        n_input_dims: The number of dimensions without the batch.
        size_average: Whether to take the mean instead.
        squeeze: Whether to drop the dimension.
    """

    def __init__(
        self,
        dimension: int = 1,
        n_input_dims: int = -1,
        size_average: bool = False,
        squeeze: bool = True,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.dim, self.dims = dimension, n_input_dims
        self.average = check_flag("size_average", size_average)
        self.squeeze = check_flag("squeeze", squeeze)

    def compute(self, x: Any) -> torch.Tensor:
        place = axis(self, self.dim, x.ndim, self.dims)
        value = x.mean(dim=place, keepdim=True) if self.average else x.sum(dim=place, keepdim=True)
        return _kept(value.squeeze(place)) if self.squeeze else value


class Mean(Sum):
    """Takes the mean over a dimension.

    Args:
        dimension: The dimension, counted from 1.
        n_input_dims: The number of dimensions without the batch.
        squeeze: Whether to drop the dimension.
    """

    def __init__(
        self, dimension: int = 1, n_input_dims: int = -1, squeeze: bool = True, bigdl_type: str = "float"
    ) -> None:
        super().__init__(dimension, n_input_dims, True, squeeze)
