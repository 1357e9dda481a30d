"""Layers that add noise in training."""

from __future__ import annotations

import math
from typing import Any

import torch

from orca.backends.bigdl.activations import Elementwise
from orca.backends.bigdl.debugging import uses_own_stream
from orca.backends.bigdl.dimensions import need_dims
from orca.backends.bigdl.images import check_format
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.random_stream import STREAM
from orca.backends.bigdl.table_layers import pair
from orca.core.arguments import check_flag, check_number
from orca.errors import ArgumentError


def check_probability(name: str, value: Any) -> float:
    """Return a probability below 1."""
    number = check_number(name, value)
    if not 0.0 <= number < 1.0:
        raise ArgumentError(f"{name}={value}: expected a probability of at least 0 and below 1.")
    return number


def kept(shape: Any, probability: float, like: torch.Tensor) -> torch.Tensor:
    """Return a mask of ones with a probability, zeros otherwise."""
    if uses_own_stream():
        drawn = STREAM.bernoulli(probability, math.prod(shape))
        return torch.from_numpy(drawn).to(like.dtype).reshape(tuple(shape))
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device).bernoulli_(probability)


def gaussian(like: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
    """Return normal numbers in the shape of a tensor."""
    if uses_own_stream():
        drawn = STREAM.normal(mean, deviation, like.numel())
        return torch.from_numpy(drawn).to(like.dtype).reshape(like.shape)
    return torch.randn_like(like) * deviation + mean


class Dropout(Layer):
    """Sets random values to 0 in training.

    Args:
        init_p: The probability of 0.
        inplace: Accepted for compatibility.
        scale: Whether the other values are divided by 1 - p in training; otherwise all are multiplied by 1 - p in
            evaluation.
    """

    def __init__(
        self, init_p: float = 0.5, inplace: bool = False, scale: bool = True, bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        self.p = check_probability("init_p", init_p)
        self.scale = check_flag("scale", scale)

    def compute(self, x: Any) -> torch.Tensor:
        if not self.module.training:
            return x if self.scale else x * (1 - self.p)
        if self.scale and not uses_own_stream():
            return torch.nn.functional.dropout(x, self.p, training=True)
        mask = kept(x.shape, 1 - self.p, x)
        return x * (mask / (1 - self.p) if self.scale else mask)


class _SpatialDropout(Layer):
    """Sets whole maps to 0 in training; multiplies by 1 - p in evaluation."""

    p: float

    def _dropped(self, x: torch.Tensor, shape: list[int]) -> torch.Tensor:
        if not self.module.training:
            return x * (1 - self.p)
        return x * kept(shape, 1 - self.p, x)


class SpatialDropout1D(_SpatialDropout):
    """Sets whole columns of sequences (batch, time, frame) to 0 in training; multiplies by 1 - p in evaluation.

    Args:
        init_p: The probability of 0.
    """

    def __init__(self, init_p: float = 0.5, bigdl_type: str = "float") -> None:
        super().__init__()
        self.p = check_probability("init_p", init_p)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 2, 3)
        return self._dropped(x, [*x.shape[:-2], 1, x.shape[-1]])


class SpatialDropout2D(_SpatialDropout):
    """Sets whole channels of images to 0 in training; multiplies by 1 - p in evaluation.

    Args:
        init_p: The probability of 0.
        data_format: "NCHW" or "NHWC".
    """

    spatial = 2

    def __init__(self, init_p: float = 0.5, data_format: str = "NCHW", bigdl_type: str = "float") -> None:
        super().__init__()
        self.p = check_probability("init_p", init_p)
        self.last = check_format("data_format", data_format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, self.spatial + 1, self.spatial + 2)
        front, back = list(x.shape[: x.ndim - self.spatial - 1]), [1] * self.spatial
        channels = x.shape[-1] if self.last else x.shape[-self.spatial - 1]
        return self._dropped(x, front + (back + [channels] if self.last else [channels] + back))


class SpatialDropout3D(SpatialDropout2D):
    """Sets whole channels of volumes to 0 in training; multiplies by 1 - p in evaluation.

    Args:
        init_p: The probability of 0.
        data_format: "NCHW" or "NHWC".
    """

    spatial = 3


class GaussianDropout(Layer):
    """Multiplies by normal numbers around 1 in training.

    Args:
        rate: Their deviation is √(rate / (1 - rate)).
    """

    def __init__(self, rate: float, bigdl_type: str = "float") -> None:
        super().__init__()
        rate = check_probability("rate", rate)
        self.deviation = math.sqrt(rate / (1.0 - rate))

    def compute(self, x: Any) -> torch.Tensor:
        return x * gaussian(x, 1.0, self.deviation) if self.module.training else x


class GaussianNoise(Layer):
    """Adds normal numbers in training.

    Args:
        stddev: Their deviation.
    """

    def __init__(self, stddev: float, bigdl_type: str = "float") -> None:
        super().__init__()
        self.deviation = check_number("stddev", stddev, least=0.0)

    def compute(self, x: Any) -> torch.Tensor:
        return x + gaussian(x, 0.0, self.deviation) if self.module.training else x


class GaussianSampler(Elementwise):
    """Samples from normal distributions, for a table of their means and the logarithms of their variances."""

    def compute(self, x: Any) -> torch.Tensor:
        mean, log_variance = pair(self, x)
        return mean + (0.5 * log_variance).exp() * gaussian(mean, 0.0, 1.0)
