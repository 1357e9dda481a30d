"""Layers that add or multiply a learned tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from orca.backends.bigdl.initialization import RandomUniform
from orca.backends.bigdl.layer import Layer
from orca.core.arguments import check_count
from orca.errors import DataError


def bounded(size: int) -> RandomUniform:
    """Return the uniform distribution over ±1/√size."""
    return RandomUniform(-1.0 / math.sqrt(size), 1.0 / math.sqrt(size))


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """Return a shape that a user wrote as a list or one integer."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(check_count(name, item) for item in values)


def fitted(layer: Layer, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a weight in a shape that broadcasts over the input, with a batch dimension in front if necessary."""
    if weight.numel() == x.numel():
        return weight.reshape(x.shape)
    shape = weight.shape if weight.ndim == x.ndim else (1, *weight.shape)
    try:
        if torch.broadcast_shapes(shape, x.shape) == x.shape:
            return weight.reshape(shape)
    except RuntimeError:
        pass
    raise DataError(
        f"{layer!r} has a weight of shape {tuple(weight.shape)}; it does not fit the input {tuple(x.shape)}."
    )


class Add(Layer):
    """Adds a learned value to each column.

    Args:
        input_size: The number of columns.
    """

    def __init__(self, input_size: int, bigdl_type: str = "float") -> None:
        super().__init__()
        size = check_count("input_size", input_size)
        self.declare("bias", [size], bounded(size))

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        return x + (module.bias if module.bias.numel() == 1 else fitted(self, module.bias, x))


class CAdd(Layer):
    """Adds a learned tensor, repeated along its dimensions of one.

    Args:
        size: The shape of the tensor.
        bRegularizer: Its regularizer.
    """

    def __init__(self, size: Any, bRegularizer: Any = None, bigdl_type: str = "float") -> None:
        super().__init__()
        shape = shape_of("size", size)
        self.declare("bias", shape, bounded(math.prod(shape)), regularizer=bRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        return x + fitted(self, module.bias, x)


class CMul(Layer):
    """Multiplies by a learned tensor, repeated along its dimensions of one.

    Args:
        size: The shape of the tensor.
        wRegularizer: Its regularizer.
    """

    def __init__(self, size: Any, wRegularizer: Any = None, bigdl_type: str = "float") -> None:
        super().__init__()
        shape = shape_of("size", size)
        self.declare("weight", shape, bounded(math.prod(shape)), regularizer=wRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        return x * fitted(self, module.weight, x)


class Mul(Layer):
    """Multiplies by one learned number."""

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__()
        self.declare("weight", [1], bounded(1))

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        return x * module.weight


class Scale(Layer):
    """Multiplies by a learned tensor and adds another, both repeated along their dimensions of one.

    Args:
        size: The shape of both tensors.
    """

    def __init__(self, size: Any, bigdl_type: str = "float") -> None:
        super().__init__()
        shape = shape_of("size", size)
        method = bounded(math.prod(shape))
        self.declare("weight", shape, method)
        self.declare("bias", shape, method)

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        return x * fitted(self, module.weight, x) + fitted(self, module.bias, x)
