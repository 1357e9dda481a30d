"""Locally connected layers: convolutions with weights of their own at every place."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import need_dims, need_size, same_padding
from orca.backends.bigdl.images import channels_first, check_format, check_padding
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import bounded
from orca.core.arguments import check_count, check_flag
from orca.errors import ArgumentError


class LocallyConnected1D(Layer):
    """A convolution over sequences (batch, time, frame) with weights of its own at every time step.

    Args:
        n_input_frame: The number of time steps.
        input_frame_size: The number of values per time step.
        output_frame_size: The number of outputs per time step.
        kernel_w: The number of time steps of the kernel.
        stride_w: The step in time.
        propagate_back: Whether the input gets a gradient.
        weight_regularizer: The regularizer of the weight (time, outputs, kernel * inputs).
        bias_regularizer: The regularizer of the bias (time, outputs).
        init_weight: The first weight instead of a random one.
        init_bias: The first bias.
    """

    def __init__(
        self,
        n_input_frame: int,
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
        self.frames = check_count("n_input_frame", n_input_frame)
        self.inputs = check_count("input_frame_size", input_frame_size)
        outputs = check_count("output_frame_size", output_frame_size)
        self.kernel, self.stride = check_count("kernel_w", kernel_w), check_count("stride_w", stride_w)
        if self.frames < self.kernel:
            raise ArgumentError(f"n_input_frame={n_input_frame} is smaller than kernel_w={kernel_w}.")
        self.back = check_flag("propagate_back", propagate_back)
        places = (self.frames - self.kernel) // self.stride + 1
        width = self.kernel * self.inputs
        shape = (places, outputs, width)
        self.declare("weight", shape, bounded(width), (outputs, places), init_weight, weight_regularizer)
        self.declare("bias", shape[:2], bounded(width), (places, 1), init_bias, bias_regularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 2, 3)
        need_size(self, x, -2, self.frames, "time steps")
        need_size(self, x, -1, self.inputs, "values per time step")
        module: Any = self.module
        windows = (x if self.back else x.detach()).unfold(-2, self.kernel, self.stride)
        flat = windows.transpose(-1, -2).flatten(-2)
        return torch.einsum("...pw,pow->...po", flat, module.weight) + module.bias


class LocallyConnected2D(Layer):
    """A convolution over images with weights of its own at every place.

    Args:
        n_input_plane: The number of input channels.
        input_width: The width of the images.
        input_height: Their height.
        n_output_plane: The number of output channels.
        kernel_w: The width of the kernel.
        kernel_h: Its height.
        stride_w: The step in width.
        stride_h: The step in height.
        pad_w: Zeros added on both sides; -1 in both directions for TensorFlow's "SAME".
        pad_h: The same for the height.
        propagate_back: Whether the input gets a gradient.
        wRegularizer: The regularizer of the weight (places, outputs, inputs * kernel).
        bRegularizer: The regularizer of the bias (places, outputs).
        init_weight: The first weight instead of a random one.
        init_bias: The first bias.
        with_bias: Whether a bias is added.
        data_format: "NCHW" or "NHWC".
    """

    def __init__(
        self,
        n_input_plane: int,
        input_width: int,
        input_height: int,
        n_output_plane: int,
        kernel_w: int,
        kernel_h: int,
        stride_w: int = 1,
        stride_h: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        propagate_back: bool = True,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        init_weight: Any = None,
        init_bias: Any = None,
        init_grad_weight: Any = None,
        init_grad_bias: Any = None,
        with_bias: bool = True,
        data_format: str = "NCHW",
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.inputs = check_count("n_input_plane", n_input_plane)
        self.outputs = check_count("n_output_plane", n_output_plane)
        self.size = (check_count("input_height", input_height), check_count("input_width", input_width))
        self.kernel = (check_count("kernel_h", kernel_h), check_count("kernel_w", kernel_w))
        self.stride = (check_count("stride_h", stride_h), check_count("stride_w", stride_w))
        self.back = check_flag("propagate_back", propagate_back)
        self.last = check_format("data_format", data_format)
        if check_padding(pad_w, pad_h):
            sides = [same_padding(s, k, d) for s, k, d in zip(self.size, self.kernel, self.stride, strict=True)]
        else:
            sides = [(pad_h, pad_h), (pad_w, pad_w)]
        self.pad = [side for pair in reversed(sides) for side in pair]
        self.places = tuple(
            (size + sum(side) - k) // step + 1
            for size, side, k, step in zip(self.size, sides, self.kernel, self.stride, strict=True)
        )
        if min(self.places) < 1:
            raise ArgumentError(f"The kernel {self.kernel} does not fit into images of size {self.size}.")
        width = math.prod(self.kernel) * self.inputs
        shape = (math.prod(self.places), self.outputs, width)
        self.declare("weight", shape, bounded(width), None, init_weight, wRegularizer)
        self.with_bias = check_flag("with_bias", with_bias)
        if self.with_bias:
            self.declare("bias", shape[:2], bounded(width), (shape[0], 1), init_bias, bRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        channel, height = (-1, -3) if self.last else (-3, -2)
        need_size(self, x, channel, self.inputs, "channels")
        need_size(self, x, height, self.size[0], "rows of pixels")
        need_size(self, x, height + 1, self.size[1], "columns of pixels")
        batch = x if x.ndim == 4 else x.unsqueeze(0)
        value = channels_first(self._connected, batch if self.back else batch.detach(), self.last)
        return value if x.ndim == 4 else value.squeeze(0)

    def _connected(self, x: torch.Tensor) -> torch.Tensor:
        module: Any = self.module
        windows = F.unfold(F.pad(x, self.pad), self.kernel, stride=self.stride)
        if self.last:
            # BigDL orders the values of a window by height, width and channel in this format.
            windows = windows.unflatten(1, (self.inputs, -1)).transpose(1, 2).flatten(1, 2)
        value = torch.einsum("bwp,pow->bop", windows, module.weight)
        if self.with_bias:
            value = value + module.bias.T
        return value.unflatten(2, self.places)
