"""Layers that combine the tensors of a table."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from orca.backends.bigdl.activations import Elementwise, Inplace
from orca.backends.bigdl.dimensions import INTMAX, need_dims
from orca.backends.bigdl.layer import Layer
from orca.core.arguments import check_flag
from orca.errors import DataError


def pair(layer: Layer, x: Any) -> tuple[Any, Any]:
    """Return the two tensors of a table."""
    if not isinstance(x, list | tuple) or len(x) != 2:
        count = len(x) if isinstance(x, list | tuple) else "one tensor instead"
        raise DataError(f"{layer!r} needs a table of two tensors; received {count}.")
    return x[0], x[1]


def several(layer: Layer, x: Any) -> list[Any]:
    """Return the tensors of a table; raise for a single tensor."""
    if not isinstance(x, list | tuple):
        raise DataError(f"{layer!r} needs a table of tensors; received one tensor of shape {tuple(x.shape)}.")
    return list(x)


class CAddTable(Inplace):
    """Sums the tensors of a table."""

    def compute(self, x: Any) -> torch.Tensor:
        return functools.reduce(operator.add, several(self, x))


class CAveTable(Inplace):
    """Averages the tensors of a table."""

    def compute(self, x: Any) -> torch.Tensor:
        return functools.reduce(operator.add, several(self, x)) / len(x)


class CSubTable(Elementwise):
    """Subtracts the second tensor of a table from the first."""

    def compute(self, x: Any) -> torch.Tensor:
        return operator.sub(*pair(self, x))


class CMulTable(Elementwise):
    """Multiplies the tensors of a table."""

    def compute(self, x: Any) -> torch.Tensor:
        return functools.reduce(operator.mul, several(self, x))


class CDivTable(Elementwise):
    """Divides the first tensor of a table by the second."""

    def compute(self, x: Any) -> torch.Tensor:
        return operator.truediv(*pair(self, x))


class CMaxTable(Elementwise):
    """Takes the maximum of the tensors of a table; the gradient goes to the first one that has it."""

    def compute(self, x: Any) -> torch.Tensor:
        return functools.reduce(lambda a, b: torch.where(b > a, b, a), several(self, x))


class CMinTable(Elementwise):
    """Takes the minimum of the tensors of a table; the gradient goes to the first one that has it."""

    def compute(self, x: Any) -> torch.Tensor:
        return functools.reduce(lambda a, b: torch.where(b < a, b, a), several(self, x))


class DotProduct(Elementwise):
    """Computes the dot product of the rows of two tensors."""

    def compute(self, x: Any) -> torch.Tensor:
        first, second = pair(self, x)
        need_dims(self, first, 1, 2)
        return (first * second).sum(dim=-1).reshape(-1)


class CosineDistance(Elementwise):
    """Computes the cosine of the angle between the rows of two tensors."""

    def compute(self, x: Any) -> torch.Tensor:
        first, second = pair(self, x)
        need_dims(self, first, 1, 2)
        return cosine(first, second).reshape(-1)


def cosine(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the cosine of the angle between rows; 1e-12 is added to their squared norms."""
    product = (first * second).sum(dim=-1)
    return product / ((first.square().sum(dim=-1) + 1e-12) * (second.square().sum(dim=-1) + 1e-12)).sqrt()


class PairwiseDistance(Layer):
    """Computes the distance of the rows of two tensors.

    Args:
        norm: The norm of the difference.
    """

    def __init__(self, norm: int = 2, bigdl_type: str = "float") -> None:
        super().__init__()
        self.norm = norm

    def compute(self, x: Any) -> torch.Tensor:
        first, second = pair(self, x)
        need_dims(self, first, 1, 2)
        return torch.linalg.vector_norm(first - second, ord=self.norm, dim=-1).reshape(-1)


class MM(Layer):
    """Multiplies two matrices, or two batches of matrices.

    Args:
        trans_a: Whether the first is transposed.
        trans_b: Whether the second is transposed.
    """

    def __init__(self, trans_a: bool = False, trans_b: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.first, self.second = check_flag("trans_a", trans_a), check_flag("trans_b", trans_b)

    def compute(self, x: Any) -> torch.Tensor:
        first, second = pair(self, x)
        return (first.mT if self.first else first) @ (second.mT if self.second else second)


class MV(Layer):
    """Multiplies matrices by vectors, of which it takes a table with two tensors.

    Args:
        trans: Whether the matrices are transposed.
    """

    def __init__(self, trans: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.trans = check_flag("trans", trans)

    def compute(self, x: Any) -> torch.Tensor:
        matrix, vector = pair(self, x)
        need_dims(self, matrix, 2, 3)
        return ((matrix.mT if self.trans else matrix) @ vector.unsqueeze(-1)).squeeze(-1)


class Gemm(Layer):
    """Computes alpha * (a @ b) + beta * c for a table of three tensors.

    Args:
        alpha: The factor of the product.
        beta: The factor of the summand.
        trans_a: Whether a is transposed.
        trans_b: Whether b is transposed.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        trans_a: bool = False,
        trans_b: bool = False,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.alpha, self.beta = float(alpha), float(beta)
        self.first, self.second = check_flag("trans_a", trans_a), check_flag("trans_b", trans_b)

    def compute(self, x: Any) -> torch.Tensor:
        a, b, c = several(self, x)
        return self.alpha * ((a.mT if self.first else a) @ (b.mT if self.second else b)) + self.beta * c


class CrossProduct(Layer):
    """Computes the dot products of all pairs of tensors of a table.

    Args:
        numTensor: The number of tensors to expect; 0 for any.
        embeddingSize: The number of columns to expect; 0 for any.
    """

    def __init__(self, numTensor: int = 0, embeddingSize: int = 0, bigdl_type: str = "float") -> None:
        super().__init__()
        self.number, self.size = numTensor, embeddingSize

    def compute(self, x: Any) -> torch.Tensor:
        tensors = several(self, x)
        if self.number > 0 and len(tensors) != self.number:
            raise DataError(f"{self!r} expects {self.number} tensors; received {len(tensors)}.")
        if self.size > 0 and any(tensor.shape[-1] != self.size for tensor in tensors):
            raise DataError(f"{self!r} expects {self.size} columns; received {[tuple(t.shape) for t in tensors]}.")
        rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
        pairs = [(a * b).sum(dim=1) for i, a in enumerate(rows) for b in rows[i + 1 :]]
        return torch.stack(pairs, dim=1)


class MixtureTable(Layer):
    """Averages experts with the weights of a gate, for a table of the gate and the experts.

    Args:
        dim: The dimension of the experts' tensor along which they lie, if they are not a table.
    """

    def __init__(self, dim: int = INTMAX, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim = dim

    def compute(self, x: Any) -> torch.Tensor:
        gate, experts = pair(self, x)
        place = gate.ndim - 1 if self.dim == INTMAX else self.dim - 1
        if isinstance(experts, list):
            experts = torch.stack(experts, dim=place)
        if gate.shape[-1] != experts.shape[place]:
            raise DataError(f"{self!r} received {gate.shape[-1]} gates for {experts.shape[place]} experts.")
        shape = [1] * experts.ndim
        shape[place] = gate.shape[-1]
        if gate.ndim > 1:
            shape[0] = gate.shape[0]
        return (gate.reshape(shape) * experts).sum(dim=place)
