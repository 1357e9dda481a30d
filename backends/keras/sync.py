"""The contract of a way to add tensors up over the ranks; by itself, one rank alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops


def scaled(tensors: Sequence[Any], scale: Any) -> Sequence[Any]:
    """Tensors multiplied by a number, if there is one."""
    if scale is None:
        return tensors
    return [value * ops.cast(scale, value.dtype) for value in tensors]


class Reducer:
    """One rank by itself: sums are what is there.

    Every place in a program that sums has a name, the same on all ranks however often and in whatever order each of
    them traces its graphs.
    """

    world = 1

    def sums(self, tensors: Sequence[Any], place: str, scale: Any = None) -> list[Any]:
        """The sums of tensors over all ranks, each rank's multiplied by its scale; only then, as gradients, they may be
        sent as rounded numbers."""
        return list(scaled(tensors, scale))

    def total(self, value: float) -> float:
        """The sum of a number over all ranks."""
        return value
