"""The contract of a way to add tensors up over the ranks; by itself, one rank alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Reducer:
    """One rank by itself: sums are what is there.

    Every place in a program that sums has a name, the same on all ranks however often and in whatever order each of
    them traces its graphs.
    """

    world = 1

    def sums(self, tensors: Sequence[Any], place: str) -> list[Any]:
        """The sums of tensors over all ranks."""
        return list(tensors)

    def total(self, value: float) -> float:
        """The sum of a number over all ranks."""
        return value
