"""Activation functions with weights."""

from __future__ import annotations

import math
from typing import Any, Self

import torch

from orca.backends.bigdl.dimensions import need_size
from orca.backends.bigdl.initialization import ConstInitMethod, InitializationMethod, Ones, Xavier, Zeros
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import shape_of
from orca.core.arguments import check_count, shown
from orca.errors import ArgumentError


class PReLU(Layer):
    """Multiplies negative values by a learned slope.

    Args:
        n_output_plane: The number of channels with a slope of their own; 0 for one common slope.
    """

    def __init__(self, n_output_plane: int = 0, bigdl_type: str = "float") -> None:
        super().__init__()
        self.planes = check_count("n_output_plane", n_output_plane, least=0)
        self.declare("weight", [max(1, self.planes)], ConstInitMethod(0.25))

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        weight = module.weight
        if self.planes:
            place = 0 if x.ndim in (1, 3) else 1
            need_size(self, x, place, self.planes, "channels")
            weight = weight.reshape([-1 if i == place else 1 for i in range(x.ndim)])
        return torch.where(x > 0, x, weight * x)


class SReLU(Layer):
    """An S-shaped function of three straight parts, whose thresholds and outer slopes are learned.

    Args:
        input_shape: The shape of one row.
        share_axes: The axes of a row, counted from 1, along which weights are shared.
    """

    def __init__(self, input_shape: Any, share_axes: Any = None, bigdl_type: str = "float") -> None:
        super().__init__()
        shape = list(shape_of("input_shape", input_shape))
        for place in [] if share_axes is None else shape_of("share_axes", share_axes):
            if place > len(shape):
                raise ArgumentError(f"share_axes={shown(share_axes)}: a row has {len(shape)} axes, counted from 1.")
            shape[place - 1] = 1
        fans = _fans(shape)
        self.declare("tLeft", shape, Zeros(), fans)
        self.declare("aLeft", shape, Xavier(), fans)
        self.declare("tRight", shape, Xavier(), fans)
        self.declare("aRight", shape, Ones(), fans)
        self._order()
        # BigDL draws all weights a second time when the layer has been built.
        self.reset()

    def _order(self) -> None:
        """Move the right threshold to the right of the left one."""
        module: Any = self.module
        with torch.no_grad():
            module.tRight.copy_(module.tRight.abs() + module.tLeft)

    def reset(self) -> Self:
        """Draw all weights again."""
        for weight in self._weights.values():
            size = math.prod(weight.shape)
            weight.fans = (size, size)
        return super().reset()

    def set_init_method(
        self, tLeftInit: Any = None, aLeftInit: Any = None, tRightInit: Any = None, aRightInit: Any = None
    ) -> Self:
        """Set how the four weights are drawn, and draw them at once."""
        methods = {"tLeft": tLeftInit, "aLeft": aLeftInit, "tRight": tRightInit, "aRight": aRightInit}
        for name, method in methods.items():
            if method is None:
                continue
            if not isinstance(method, InitializationMethod):
                raise ArgumentError(f"{name}Init={shown(method)}: expected an initialization method, such as Xavier().")
            self._weights[name].method = method
        return self.reset()

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        left = module.tLeft
        # The value is that of BigDL, which replaces the weight itself; the gradient goes to the weight as it is.
        right = module.tRight + (module.tRight.abs() + left - module.tRight).detach()
        above = right + module.aRight * (x - right)
        below = left + module.aLeft * (x - left)
        return torch.where(x >= right, above, torch.where(x <= left, below, x))


def _fans(shape: list[int]) -> tuple[int, int]:
    if len(shape) == 2:
        return shape[0], shape[1]
    if len(shape) in (4, 5):
        field = math.prod(shape[2:])
        return shape[1] * field, shape[0] * field
    return (math.prod(shape),) * 2
