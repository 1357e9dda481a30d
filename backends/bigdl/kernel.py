"""The torch module of a layer: it holds the parameters and runs the layer's computation."""

from __future__ import annotations

from typing import Any

from torch import nn

from orca.backends.bigdl.tables import floats


class Kernel(nn.Module):  # type: ignore[misc]
    """Runs `layer.compute` on tensors; submodules are the kernels of the layers inside."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.outermost = False
        """Whether inputs come from data: integers are then converted to floats."""

    def forward(self, x: Any, *more: Any) -> Any:
        if self.outermost:
            x = floats([x, *more] if more else x)
        return self.layer.compute(x)

    def extra_repr(self) -> str:
        return type(self.layer).__name__
