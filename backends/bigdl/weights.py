"""How one weight of a layer was declared: its shape, how it is drawn, and its regularizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orca.backends.bigdl.initialization import InitializationMethod
from orca.backends.bigdl.regularizer import L1L2Regularizer
from orca.backends.bigdl.samples import JTensor
from orca.errors import ArgumentError


@dataclass
class Weight:
    """A weight as it was declared."""

    name: str
    shape: tuple[int, ...]
    method: InitializationMethod
    fans: tuple[int, int] | None
    """The numbers of inputs and outputs; by default those of a vector or of a matrix (outputs, inputs)."""
    value: Any
    """The first value if the user supplied it."""
    regularizer: L1L2Regularizer | None

    def first(self) -> npt.NDArray[np.float32]:
        """Return the first values."""
        if self.value is not None:
            array = np.asarray(self.value.to_ndarray() if isinstance(self.value, JTensor) else self.value)
            if array.size != math.prod(self.shape):
                raise ArgumentError(f"The initial {self.name} has shape {array.shape}; this layer needs {self.shape}.")
            return array.astype(np.float32).reshape(self.shape).copy()
        fan_in, fan_out = self.fans or self._fans()
        return self.method.draw(self.shape, fan_in, fan_out).astype(np.float32)

    def _fans(self) -> tuple[int, int]:
        if len(self.shape) == 1:
            return self.shape[0], 1
        return (self.shape[1], self.shape[0]) if len(self.shape) == 2 else (math.prod(self.shape),) * 2


def grad_key(name: str) -> str:
    """Return the name of a weight's gradient in `parameters()`."""
    if name[-1].isdigit():
        return f"gradient{name[len(name.rstrip('0123456789')) :]}"
    return f"grad{name[0].upper()}{name[1:]}"
