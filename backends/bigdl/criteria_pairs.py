"""Criteria for pairs of outputs, of which they take a table, and targets 1 or -1."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.table_layers import cosine
from orca.core.arguments import check_flag, check_number
from orca.errors import DataError


def _labels(target: Any) -> torch.Tensor:
    """Return the targets, which may be a table of one tensor."""
    labels: torch.Tensor = target[0] if isinstance(target, list) else target
    return labels.reshape(-1)


class L1HingeEmbeddingCriterion(Criterion):
    """The L1 distance of two vectors for the target 1, max(0, margin - distance) for the target -1.

    Args:
        margin: The margin.
    """

    reduction = "sum"

    def __init__(self, margin: float = 1.0, bigdl_type: str = "float") -> None:
        self.margin = check_number("margin", margin)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        labels = _labels(target)
        first, second = output
        rows = (first - second).abs().reshape(len(labels), -1) if len(labels) else None
        if rows is None or first.numel() % len(labels):
            raise DataError(f"L1HingeEmbeddingCriterion received {len(labels)} targets for {tuple(first.shape)}.")
        distance = rows.sum(dim=1)
        return torch.where(labels == -1, (self.margin - distance).relu(), distance).sum()


class MarginRankingCriterion(Criterion):
    """max(0, -y (x1 - x2) + margin).

    Args:
        margin: The margin.
        size_average: Whether to divide by the number of targets.
    """

    def __init__(self, margin: float = 1.0, size_average: bool = True, bigdl_type: str = "float") -> None:
        self.margin = check_number("margin", margin)
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        first, second = output
        labels = _labels(target)
        shape = (-1,) + (1,) * (first.ndim - 1)
        if len(labels) not in (1, first.shape[0]):
            raise DataError(f"MarginRankingCriterion received {len(labels)} targets for {tuple(first.shape)}.")
        # A difference of exactly the margin gets the gradient too, as in BigDL.
        distance = self.margin - labels.reshape(shape) * (first - second)
        values = torch.where(distance >= 0, distance, 0.0)
        return values.sum() / len(labels) if self.reduction == "mean" else values.sum()


class CosineEmbeddingCriterion(Criterion):
    """1 - cos for the target 1, max(0, cos - margin) for the target -1.

    Args:
        margin: The margin.
        size_average: Whether to divide by the number of targets.
    """

    def __init__(self, margin: float = 0.0, size_average: bool = True, bigdl_type: str = "float") -> None:
        self.margin = check_number("margin", margin)
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        first, second = output
        labels = _labels(target)
        similarity = cosine(first, second).reshape(-1)
        if len(labels) != len(similarity):
            raise DataError(f"CosineEmbeddingCriterion received {len(labels)} targets for {len(similarity)} rows.")
        values = torch.where(labels == 1, 1 - similarity, (similarity - self.margin).relu())
        return values.mean() if self.reduction == "mean" else values.sum()
