"""Keras on torch: reduces gradients over the gang's torch.distributed process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from orca.backends.keras.sync import Reducer, scaled
from orca.backends.torch.group import join

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


class Group(Reducer):
    """Reduces over the torch process group."""

    def __init__(self, context: RankContext) -> None:
        join(context)
        self.world = context.place.world

    def sums(self, tensors: Sequence[Any], site: str, scale: Any = None) -> list[Any]:
        tensors = scaled(tensors, scale)
        sums: list[Any] = [None] * len(tensors)
        for dtype in dict.fromkeys(value.dtype for value in tensors):
            chosen = [index for index, value in enumerate(tensors) if value.dtype == dtype]
            flat = torch.cat([tensors[index].detach().reshape(-1) for index in chosen])
            dist.all_reduce(flat)
            for index, part in zip(chosen, flat.split([tensors[i].numel() for i in chosen]), strict=True):
                sums[index] = part.reshape(tensors[index].shape)
        return sums

    def total(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)
