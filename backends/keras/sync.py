"""The contract of a reducer, which sums tensors over the ranks; the base class serves a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops


def scaled(tensors: Sequence[Any], scale: Any) -> Sequence[Any]:
    """Multiply tensors by a scale, if there is one."""
    if scale is None:
        return tensors
    return [value * ops.cast(scale, value.dtype) for value in tensors]


class Reducer:
    """Sums over a single rank, which are the tensors themselves.

    Each reduction in a program has a `site`, a name that is the same on all ranks however often and in whatever order
    each of them traces its graphs.
    """

    world = 1

    def sums(self, tensors: Sequence[Any], site: str, scale: Any = None) -> list[Any]:
        """Sum tensors over all ranks, each rank's multiplied by its scale.

        Scaled tensors are gradients and may be sent in lower precision.
        """
        return list(scaled(tensors, scale))

    def total(self, value: float) -> float:
        """Sum a number over all ranks."""
        return value
