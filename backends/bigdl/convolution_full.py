"""Transposed convolutions, which BigDL calls full."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import need_dims, need_size
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import bounded
from orca.core.arguments import check_count, check_flag
from orca.errors import ArgumentError


class _FullConvolution(Layer):
    """A transposed convolution over two or three dimensions."""

    inputs: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    adjust: tuple[int, ...]

    def _build(self, outputs: int, groups: int, no_bias: bool, w_regularizer: Any, b_regularizer: Any) -> None:
        self.groups = check_count("n_group", groups)
        self.with_bias = not check_flag("no_bias", no_bias)
        for name, count in (("n_input_plane", self.inputs), ("n_output_plane", outputs)):
            if count % self.groups:
                raise ArgumentError(f"{name}={count} is not a multiple of n_group={self.groups}.")
        for extra, step in zip(self.adjust, self.stride, strict=True):
            if not 0 <= extra < step:
                raise ArgumentError(f"The extra size {self.adjust} must be smaller than the step {self.stride}.")
        inputs, outputs_of_group = self.inputs // self.groups, outputs // self.groups
        method = bounded(math.prod(self.kernel) * self.inputs)
        field = self.groups * math.prod(self.kernel)
        fans = (inputs * field, outputs_of_group * field)
        shape = (self.groups, inputs, outputs_of_group, *self.kernel)
        self.declare("weight", shape, method, fans, regularizer=w_regularizer)
        if self.with_bias:
            self.declare("bias", [outputs], method, regularizer=b_regularizer)

    def compute(self, x: Any) -> torch.Tensor:
        spatial = len(self.kernel)
        x, adjust = self._target(x) if isinstance(x, list | tuple) else (x, self.adjust)
        need_dims(self, x, spatial + 1, spatial + 2)
        need_size(self, x, -spatial - 1, self.inputs, "channels")
        module: Any = self.module
        weight = module.weight.flatten(0, 1)
        bias = module.bias if self.with_bias else None
        function: Any = F.conv_transpose2d if spatial == 2 else F.conv_transpose3d
        result: torch.Tensor = function(x, weight, bias, self.stride, self.pad, adjust, self.groups)
        return result

    def _target(self, x: Any) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Return the tensor of a table and the extra size that gives the output the size of the table's second."""
        source, example = x
        sizes = zip(source.shape[-len(self.kernel) :], example.shape[-len(self.kernel) :], strict=True)
        settings = zip(sizes, self.kernel, self.stride, self.pad, strict=True)
        extra = tuple(out - ((size - 1) * step - 2 * pad + k) for (size, out), k, step, pad in settings)
        return source, extra


class SpatialFullConvolution(_FullConvolution):
    """A transposed convolution over images; sizes name the width first.

    A table of two tensors as input sets the size of the output to that of the second.

    Args:
        n_input_plane: The number of input channels.
        n_output_plane: The number of output channels.
        kw: The width of the kernel.
        kh: Its height.
        dw: The step in width.
        dh: The step in height.
        pad_w: What is removed on both sides.
        pad_h: The same for the height.
        adj_w: The extra width of the output.
        adj_h: Its extra height.
        n_group: The number of groups of channels.
        no_bias: Whether no bias is added.
        wRegularizer: The regularizer of the weight (groups, inputs, outputs, height, width).
        bRegularizer: The regularizer of the bias.
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kw: int,
        kh: int,
        dw: int = 1,
        dh: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        adj_w: int = 0,
        adj_h: int = 0,
        n_group: int = 1,
        no_bias: bool = False,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.inputs = check_count("n_input_plane", n_input_plane)
        self.kernel = (check_count("kh", kh), check_count("kw", kw))
        self.stride = (check_count("dh", dh), check_count("dw", dw))
        self.pad = (check_count("pad_h", pad_h, least=0), check_count("pad_w", pad_w, least=0))
        self.adjust = (adj_h, adj_w)
        self._build(check_count("n_output_plane", n_output_plane), n_group, no_bias, wRegularizer, bRegularizer)


class VolumetricFullConvolution(_FullConvolution):
    """A transposed convolution over volumes; sizes name time, width, height.

    Args:
        n_input_plane: The number of input channels.
        n_output_plane: The number of output channels.
        kt: The kernel in time.
        kw: Its width.
        kh: Its height.
        dt: The step in time.
        dw: The step in width.
        dh: The step in height.
        pad_t: What is removed on both sides in time.
        pad_w: The same for the width.
        pad_h: The same for the height.
        adj_t: The extra time steps of the output.
        adj_w: Its extra width.
        adj_h: Its extra height.
        n_group: The number of groups of channels.
        no_bias: Whether no bias is added.
        wRegularizer: The regularizer of the weight (groups, inputs, outputs, time, height, width).
        bRegularizer: The regularizer of the bias.
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kt: int,
        kw: int,
        kh: int,
        dt: int = 1,
        dw: int = 1,
        dh: int = 1,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
        adj_t: int = 0,
        adj_w: int = 0,
        adj_h: int = 0,
        n_group: int = 1,
        no_bias: bool = False,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.inputs = check_count("n_input_plane", n_input_plane)
        self.kernel = (check_count("kt", kt), check_count("kh", kh), check_count("kw", kw))
        self.stride = (check_count("dt", dt), check_count("dh", dh), check_count("dw", dw))
        self.pad = tuple(
            check_count(name, value, least=0) for name, value in (("pad_t", pad_t), ("pad_h", pad_h), ("pad_w", pad_w))
        )
        self.adjust = (adj_t, adj_h, adj_w)
        self._build(check_count("n_output_plane", n_output_plane), n_group, no_bias, wRegularizer, bRegularizer)
