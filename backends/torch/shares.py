"""Factors of gradients that layers add by themselves, such as penalties on activations.

The gradients of ranks are averaged. So that the average is the gradient of one process, a layer multiplies what it adds
by `of_sum` if that is a sum over rows, and by `of_mean` if it is a mean.
"""

from __future__ import annotations

_sum = _mean = 1.0


def use(sum: float = 1.0, mean: float = 1.0) -> None:
    """Set the factors for the next forward pass; without arguments those of a single process."""
    global _sum, _mean
    _sum, _mean = sum, mean


def of_sum() -> float:
    """Return the factor of a sum over this rank's rows."""
    return _sum


def of_mean() -> float:
    """Return the factor of a mean over this rank's rows."""
    return _mean
