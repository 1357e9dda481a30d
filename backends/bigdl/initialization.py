"""Initialization methods: each fills a new weight, most of them from BigDL's stream of random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from orca.backends.bigdl.random_stream import STREAM
from orca.core.arguments import check_flag, check_number
from orca.errors import ArgumentError

Shape = tuple[int, ...]
Array = npt.NDArray[Any]


class InitializationMethod:
    """Draws the first values of a weight with `draw(shape, fan_in, fan_out)`."""

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        """Return the first values of a weight."""
        raise NotImplementedError


class Zeros(InitializationMethod):
    """Fills a weight with 0."""

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        return np.zeros(shape)


class Ones(InitializationMethod):
    """Fills a weight with 1."""

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        return np.ones(shape)


class ConstInitMethod(InitializationMethod):
    """Fills a weight with a constant.

    Args:
        value: The constant.
    """

    def __init__(self, value: float, bigdl_type: str = "float") -> None:
        self.value = check_number("value", value)

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        return np.full(shape, self.value)


class RandomUniform(InitializationMethod):
    """Draws from a uniform distribution.

    Args:
        upper: The *lower* bound, as BigDL's signature has it.
        lower: The *upper* bound. Without bounds the distribution is over ±1/√(number of inputs).
    """

    def __init__(self, upper: float | None = None, lower: float | None = None, bigdl_type: str = "float") -> None:
        if (upper is None) != (lower is None):
            raise ArgumentError("RandomUniform takes both bounds or none; received one.")
        self.bounds = None if upper is None or lower is None else (float(upper), float(lower))

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        low, high = self.bounds or (-1.0 / math.sqrt(fan_in), 1.0 / math.sqrt(fan_in))
        return STREAM.uniform(low, high, math.prod(shape)).reshape(shape)


class RandomNormal(InitializationMethod):
    """Draws from a normal distribution.

    Args:
        mean: The mean.
        stdv: The standard deviation.
    """

    def __init__(self, mean: float, stdv: float, bigdl_type: str = "float") -> None:
        self.mean, self.stdv = check_number("mean", mean), check_number("stdv", stdv, least=0.0)

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        return STREAM.normal(self.mean, self.stdv, math.prod(shape)).reshape(shape)


class Xavier(InitializationMethod):
    """Draws from a uniform distribution over ±√(6 / (inputs + outputs))."""

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        bound = math.sqrt(6.0 / (fan_in + fan_out))
        return STREAM.uniform(-bound, bound, math.prod(shape)).reshape(shape)


class MsraFiller(InitializationMethod):
    """Draws from a normal distribution with deviation √(2 / n).

    Args:
        varianceNormAverage: Whether n is the mean of inputs and outputs; otherwise it is the outputs.
    """

    def __init__(self, varianceNormAverage: bool = True, bigdl_type: str = "float") -> None:
        self.average = check_flag("varianceNormAverage", varianceNormAverage)

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        count = (fan_in + fan_out) // 2 if self.average else fan_out
        return STREAM.normal(0.0, math.sqrt(2.0 / count), math.prod(shape)).reshape(shape)


class BilinearFiller(InitializationMethod):
    """Fills the weight of a transposed convolution so that it interpolates linearly."""

    def draw(self, shape: Shape, fan_in: int, fan_out: int) -> Array:
        if len(shape) != 5 or shape[3] != shape[4]:
            raise ArgumentError(f"BilinearFiller needs a weight of 5 dimensions with a square kernel; this is {shape}.")
        size = shape[4]
        half = math.ceil(size / 2.0)
        center = (2 * half - 1 - half % 2) / (2.0 * half)
        line = 1 - np.abs(np.arange(size) / half - center)
        return np.broadcast_to(np.outer(line, line), shape).copy()
