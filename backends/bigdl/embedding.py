"""Embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.debugging import uses_own_stream
from orca.backends.bigdl.dimensions import DOUBLEMAX, need_dims
from orca.backends.bigdl.initialization import RandomNormal
from orca.backends.bigdl.layer import Layer
from orca.core.arguments import check_count, check_flag, check_number
from orca.errors import DataError


class LookupTable(Layer):
    """Looks up the rows of a weight by indices that count from 1.

    Args:
        n_index: The number of rows.
        n_output: The number of columns.
        padding_value: An index whose row gets no gradient; 0 for none.
        max_norm: Rows with a larger norm are scaled down to it when they are used.
        norm_type: The norm.
        should_scale_grad_by_freq: Whether the gradient of a row is divided by how often it occurs in the batch.
        wRegularizer: The regularizer of the weight.
    """

    def __init__(
        self,
        n_index: int,
        n_output: int,
        padding_value: float = 0.0,
        max_norm: float = DOUBLEMAX,
        norm_type: float = 2.0,
        should_scale_grad_by_freq: bool = False,
        wRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.size = check_count("n_index", n_index)
        self.padding = int(check_number("padding_value", padding_value))
        self.max_norm, self.norm_type = check_number("max_norm", max_norm), check_number("norm_type", norm_type)
        self.by_frequency = check_flag("should_scale_grad_by_freq", should_scale_grad_by_freq)
        shape = (self.size, check_count("n_output", n_output))
        fans = (shape[0] * shape[1],) * 2
        self.declare("weight", shape, RandomNormal(0.0, 1.0), fans, regularizer=wRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 1, 2)
        rows = x.to(torch.int64) - 1
        if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= self.size):
            wrong = int(rows.min() if rows.min() < 0 else rows.max()) + 1
            raise DataError(f"{self!r} received index {wrong}; indices count from 1, expected 1 to {self.size}.")
        module: Any = self.module
        if self.max_norm < DOUBLEMAX:
            # In training all rows are scaled, so that ranks with different rows keep the same weights.
            used = rows.reshape(-1) if uses_own_stream() else torch.arange(self.size, device=rows.device)
            with torch.no_grad():
                torch.embedding_renorm_(module.weight.detach(), used, self.max_norm, self.norm_type)
        padding = self.padding - 1 if 1 <= self.padding <= self.size else None
        return F.embedding(rows, module.weight, padding, scale_grad_by_freq=self.by_frequency)
