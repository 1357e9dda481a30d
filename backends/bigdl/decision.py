"""The layer that turns scores into numbers of classes."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.layer import Layer


class Decision(Layer):
    """Returns the number of the largest score, from 1; of a single score, 1 above a threshold and else 0.

    Args:
        threshold: The threshold of a single score.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def compute(self, x: Any) -> torch.Tensor:
        if x.shape[-1] == 1 or x.ndim == 1:
            return (x.reshape(len(x)) > self.threshold).double()
        return (x.argmax(dim=-1) + 1).double()
