"""Containers: layers that run other layers."""

from __future__ import annotations

import math
from typing import Any, Self

import torch

from orca.backends.bigdl.dimensions import INTMAX, axis
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.table_layers import several
from orca.errors import ArgumentError, DataError


class Container(Layer):
    """A layer to which others are added."""

    def add(self, model: Layer) -> Self:
        """Append a layer.

        Args:
            model: The layer.

        Returns:
            This container.
        """
        if any(layer is self for layer in (model.walk() if isinstance(model, Layer) else ())):
            raise ArgumentError(f"{self!r} cannot contain itself.")
        self.attach(str(len(self._children)), model)
        return self

    def added(self) -> list[Layer]:
        """Return the layers that `add` has received."""
        return list(self._children.values())

    @property
    def layers(self) -> list[Layer]:
        """The layers of this container."""
        return list(self._children.values())

    def flattened_layers(self, include_container: bool = False) -> list[Layer]:
        """Return all layers inside, also those of containers inside."""
        inside = [layer for layer in self.walk() if layer is not self]
        return inside if include_container else [layer for layer in inside if not isinstance(layer, Container)]


class Sequential(Container):
    """Runs layers one after another.

    >>> from orca.backends.bigdl.linear import Linear
    >>> import numpy as np
    >>> Sequential().add(Linear(4, 3)).add(Linear(3, 2)).forward(np.ones([5, 4])).shape
    (5, 2)
    """

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__()

    def compute(self, x: Any) -> Any:
        for module in self.module._modules.values():
            x = module(x)
        return x


class ConcatTable(Container):
    """Runs each layer on the input, and returns a table of the outputs."""

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__()

    def compute(self, x: Any) -> list[Any]:
        return [module(x) for module in self.module._modules.values()]


class Concat(Container):
    """Runs each layer on the input, and concatenates the outputs.

    Args:
        dimension: The dimension, counted from 1 with the batch.
    """

    def __init__(self, dimension: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim = dimension

    def compute(self, x: Any) -> torch.Tensor:
        outputs = [module(x) for module in self.module._modules.values()]
        if not outputs:
            raise DataError(f"{self!r} has no layers. Add some with add().")
        return torch.cat(outputs, dim=axis(self, self.dim, outputs[0].ndim))


class ParallelTable(Container):
    """Runs the first layer on the first element of a table, the second on the second, and so on."""

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__()

    def compute(self, x: Any) -> list[Any]:
        elements, modules = several(self, x), list(self.module._modules.values())
        if len(elements) != len(modules):
            raise DataError(f"{self!r} has {len(modules)} layers; received a table of {len(elements)}.")
        return [module(element) for module, element in zip(modules, elements, strict=True)]


class MapTable(Container):
    """Runs one layer on every element of a table.

    Args:
        module: The layer, which may also be added later.
    """

    def __init__(self, module: Layer | None = None, bigdl_type: str = "float") -> None:
        super().__init__()
        if module is not None:
            self.add(module)

    def add(self, model: Layer) -> Self:
        """Set the layer; a second one is refused."""
        if self._children:
            raise ArgumentError(f"{self!r} runs one layer on all elements; it has one already.")
        return super().add(model)

    def compute(self, x: Any) -> list[Any]:
        if not self._children:
            raise DataError(f"{self!r} has no layer. Set one with add().")
        (module,) = self.module._modules.values()
        return [module(element) for element in several(self, x)]


class Bottle(Container):
    """Runs a layer that takes few dimensions on an input with more, by merging the first ones.

    Args:
        module: The layer.
        n_input_dim: The number of dimensions that it takes.
        n_output_dim1: The number of dimensions that it returns; the same by default.
    """

    def __init__(
        self, module: Layer, n_input_dim: int = 2, n_output_dim1: int = INTMAX, bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        self.dims = n_input_dim
        self.returned = n_input_dim if n_output_dim1 == INTMAX else n_output_dim1
        self.add(module)

    def compute(self, x: Any) -> torch.Tensor:
        (module,) = self.module._modules.values()
        merged = x.ndim - self.dims + 1
        if merged <= 1:
            return module(x)
        front = x.shape[:merged]
        value = module(x.reshape(math.prod(front), *x.shape[merged:]))
        if value.ndim != self.returned:
            raise DataError(f"{self!r} expects {self.returned} dimensions of its layer; received {value.ndim}.")
        return value.reshape(*front[:-1], -1, *value.shape[1:])


class TimeDistributed(Container):
    """Runs a layer on every time step of an input (batch, time, …).

    Args:
        model: The layer.
    """

    def __init__(self, model: Layer, bigdl_type: str = "float") -> None:
        super().__init__()
        self.add(model)

    def compute(self, x: Any) -> torch.Tensor:
        if x.ndim < 3:
            raise DataError(f"{self!r} received shape {tuple(x.shape)}; expected (batch, time, …).")
        (module,) = self.module._modules.values()
        value = module(x.flatten(0, 1))
        return value.unflatten(0, x.shape[:2])
