"""Convolutions over sequences and volumes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import need_dims, need_size
from orca.backends.bigdl.images import padded_same
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import bounded
from orca.core.arguments import check_count, check_flag
from orca.errors import ArgumentError, DataError


class TemporalConvolution(Layer):
    """A convolution over sequences (batch, time, frame).

    Args:
        input_frame_size: The number of values per time step.
        output_frame_size: The number of outputs per time step.
        kernel_w: The number of time steps of the kernel.
        stride_w: The step in time.
        propagate_back: Whether the input gets a gradient.
        weight_regularizer: The regularizer of the weight (outputs, kernel * inputs).
        bias_regularizer: The regularizer of the bias.
        init_weight: The first weight instead of a random one.
        init_bias: The first bias.
    """

    def __init__(
        self,
        input_frame_size: int,
        output_frame_size: int,
        kernel_w: int,
        stride_w: int = 1,
        propagate_back: bool = True,
        weight_regularizer: Any = None,
        bias_regularizer: Any = None,
        init_weight: Any = None,
        init_bias: Any = None,
        init_grad_weight: Any = None,
        init_grad_bias: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.inputs = check_count("input_frame_size", input_frame_size)
        outputs = check_count("output_frame_size", output_frame_size)
        self.kernel, self.stride = check_count("kernel_w", kernel_w), check_count("stride_w", stride_w)
        self.back = check_flag("propagate_back", propagate_back)
        width = self.kernel * self.inputs
        self.declare("weight", (outputs, width), bounded(width), value=init_weight, regularizer=weight_regularizer)
        self.declare("bias", [outputs], bounded(width), value=init_bias, regularizer=bias_regularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 2, 3)
        need_size(self, x, -1, self.inputs, "values per time step")
        if x.shape[-2] < self.kernel:
            raise DataError(f"{self!r} received {x.shape[-2]} time steps; its kernel needs {self.kernel}.")
        module: Any = self.module
        weight = module.weight.unflatten(1, (self.kernel, self.inputs)).transpose(1, 2)
        source = (x if self.back else x.detach()).transpose(-1, -2)
        return F.conv1d(source, weight, module.bias, self.stride).transpose(-1, -2)


class VolumetricConvolution(Layer):
    """A convolution over volumes (batch, channels, time, height, width); sizes name time, width, height.

    Args:
        n_input_plane: The number of input channels.
        n_output_plane: The number of output channels.
        k_t: The kernel in time.
        k_w: Its width.
        k_h: Its height.
        d_t: The step in time.
        d_w: The step in width.
        d_h: The step in height.
        pad_t: Zeros added on both sides in time; -1 in all directions for TensorFlow's "SAME".
        pad_w: The same for the width.
        pad_h: The same for the height.
        with_bias: Whether a bias is added.
        wRegularizer: The regularizer of the weight (outputs, inputs, time, height, width).
        bRegularizer: The regularizer of the bias.
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        k_t: int,
        k_w: int,
        k_h: int,
        d_t: int = 1,
        d_w: int = 1,
        d_h: int = 1,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
        with_bias: bool = True,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.inputs = check_count("n_input_plane", n_input_plane)
        outputs = check_count("n_output_plane", n_output_plane)
        self.kernel = (check_count("k_t", k_t), check_count("k_h", k_h), check_count("k_w", k_w))
        self.stride = (check_count("d_t", d_t), check_count("d_h", d_h), check_count("d_w", d_w))
        self.pad = (pad_t, pad_h, pad_w)
        self.same = self.pad == (-1, -1, -1)
        if not self.same and min(self.pad) < 0:
            raise ArgumentError(f"Padding {self.pad}: expected all at least 0, or all -1 for SAME padding.")
        self.with_bias = check_flag("with_bias", with_bias)
        field = k_t * k_h * k_w
        method = bounded(field * self.inputs)
        fans = (self.inputs * field, outputs * field)
        self.declare("weight", (outputs, self.inputs, *self.kernel), method, fans, regularizer=wRegularizer)
        if self.with_bias:
            self.declare("bias", [outputs], method, regularizer=bRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 4, 5)
        need_size(self, x, -4, self.inputs, "channels")
        module: Any = self.module
        x, pad = padded_same(x, self.kernel, self.stride) if self.same else (x, self.pad)
        return F.conv3d(x, module.weight, module.bias if self.with_bias else None, self.stride, pad)
