"""BigDL's random numbers: one 32-bit draw of a Mersenne Twister per uniform number, normals in pairs."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

from orca.core.arguments import check_count

_STEP = 1.0 / 4294967296.0


class RandomStream:
    """A stream of random numbers that equals BigDL's for the same seed."""

    def __init__(self, seed: int) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Restart the stream."""
        self._twister = np.random.RandomState(seed & 0xFFFFFFFF)
        self._radius: float | None = None
        self._angle = 0.0

    def units(self, count: int) -> npt.NDArray[np.float64]:
        """Return the next numbers of [0, 1)."""
        return self._twister.randint(0, 2**32, size=count, dtype=np.uint32).astype(np.float64) * _STEP

    def uniform(self, low: float, high: float, count: int) -> npt.NDArray[np.float64]:
        """Return the next numbers of [low, high)."""
        return self.units(count) * (high - low) + low

    def normal(self, mean: float, deviation: float, count: int) -> npt.NDArray[np.float64]:
        """Return the next normal numbers; each pair of draws gives two, the cosine first."""
        values = np.empty(count)
        start = 0
        if count and self._radius is not None:
            values[0] = self._radius * math.sin(self._angle)
            self._radius, start = None, 1
        missing = count - start
        draws = self.units(2 * ((missing + 1) // 2)).reshape(-1, 2)
        angles, radii = 2 * np.pi * draws[:, 0], np.sqrt(-2.0 * np.log(1.0 - draws[:, 1]))
        pairs = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).reshape(-1)
        values[start:] = pairs[:missing]
        if missing % 2:
            self._radius, self._angle = float(radii[-1]), float(angles[-1])
        return values * deviation + mean

    def bernoulli(self, probability: float, count: int) -> npt.NDArray[np.bool_]:
        """Return whether each of the next numbers is at most the probability."""
        return self.units(count) <= probability


STREAM = RandomStream(secrets.randbits(32))
"""The stream from which all layers draw their first weights."""


class RNG:
    """Access to the stream from which layers draw their first weights.

    >>> rng = RNG()
    >>> rng.set_seed(100)
    >>> rng.uniform(0.1, 0.2, [2, 3]).round(4)
    array([[0.1543, 0.1671, 0.1278],
           [0.1412, 0.1425, 0.1526]], dtype=float32)
    """

    def __init__(self, bigdl_type: str = "float") -> None:
        self.bigdl_type = bigdl_type

    def set_seed(self, seed: int) -> None:
        """Restart the stream, so that the layers created next get the same weights again.

        Args:
            seed: An integer of at least 0.
        """
        STREAM.seed(check_count("seed", seed, least=0))

    def uniform(self, a: float, b: float, size: Any) -> npt.NDArray[np.float32]:
        """Return the next numbers of [a, b).

        Args:
            a: The lower bound.
            b: The upper bound.
            size: The shape of the array.

        Returns:
            An array of float32.
        """
        return STREAM.uniform(a, b, int(np.prod(size))).astype(np.float32).reshape(size)
