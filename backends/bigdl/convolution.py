"""Convolutions over images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import need_dims, need_size
from orca.backends.bigdl.images import channels_first, check_format, check_padding, padded_same
from orca.backends.bigdl.initialization import RandomUniform, Zeros
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import bounded
from orca.core.arguments import check_count, check_flag
from orca.errors import ArgumentError


class SpatialConvolution(Layer):
    """A convolution over images; sizes name the width first.

    Args:
        n_input_plane: The number of input channels.
        n_output_plane: The number of output channels.
        kernel_w: The width of the kernel.
        kernel_h: Its height.
        stride_w: The step in width.
        stride_h: The step in height.
        pad_w: Zeros added on both sides; -1 in both directions for TensorFlow's "SAME".
        pad_h: The same for the height.
        n_group: The number of groups of channels.
        propagate_back: Whether the input gets a gradient.
        wRegularizer: The regularizer of the weight (groups, outputs, inputs, height, width).
        bRegularizer: The regularizer of the bias.
        init_weight: The first weight instead of a random one.
        init_bias: The first bias.
        with_bias: Whether a bias is added.
        data_format: "NCHW" or "NHWC".
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kernel_w: int,
        kernel_h: int,
        stride_w: int = 1,
        stride_h: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        n_group: int = 1,
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
        self.kernel = (check_count("kernel_h", kernel_h), check_count("kernel_w", kernel_w))
        self.stride = (check_count("stride_h", stride_h), check_count("stride_w", stride_w))
        self.same, self.pad = check_padding(pad_w, pad_h), (pad_h, pad_w)
        self.groups = check_count("n_group", n_group)
        self.back = check_flag("propagate_back", propagate_back)
        self.last = check_format("data_format", data_format)
        self.with_bias = check_flag("with_bias", with_bias)
        for name, count in (("n_input_plane", self.inputs), ("n_output_plane", self.outputs)):
            if count % self.groups:
                raise ArgumentError(f"{name}={count} is not a multiple of n_group={self.groups}.")
        method = bounded(self.kernel[0] * self.kernel[1] * self.inputs)
        self._declare_weight(method, init_weight, wRegularizer)
        if self.with_bias:
            self.declare("bias", [self.outputs], method, value=init_bias, regularizer=bRegularizer)

    def _declare_weight(self, method: RandomUniform, value: Any, regularizer: Any) -> None:
        groups, inputs, outputs = self.groups, self.inputs // self.groups, self.outputs // self.groups
        height, width = self.kernel
        if self.last:
            # BigDL's number of inputs for this layout is wrong; initialization methods that use it need the same one.
            shape = (groups, height, width, inputs, outputs)
            field = groups * height * width
            fans = (width * field, inputs * field)
        else:
            shape = (groups, outputs, inputs, height, width)
            fans = (inputs * groups * height * width, outputs * groups * height * width)
        self.declare("weight", shape, method, fans, value, regularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        need_size(self, x, -1 if self.last else -3, self.inputs, "channels")
        return channels_first(self._convolved, x if self.back else x.detach(), self.last)

    def _convolved(self, x: torch.Tensor) -> torch.Tensor:
        module: Any = self.module
        weight = module.weight.permute(0, 4, 3, 1, 2) if self.last else module.weight
        weight = weight.reshape(self.outputs, self.inputs // self.groups, *self.kernel)
        x, pad = padded_same(x, self.kernel, self.stride) if self.same else (x, self.pad)
        bias = module.bias if self.with_bias else None
        return F.conv2d(x, weight, bias, self.stride, pad, groups=self.groups)


class SpatialShareConvolution(SpatialConvolution):
    """A convolution over images; in BigDL it shares its buffers, here it equals `SpatialConvolution`."""

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kernel_w: int,
        kernel_h: int,
        stride_w: int = 1,
        stride_h: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        n_group: int = 1,
        propagate_back: bool = True,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        init_weight: Any = None,
        init_bias: Any = None,
        init_grad_weight: Any = None,
        init_grad_bias: Any = None,
        with_bias: bool = True,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__(
            n_input_plane,
            n_output_plane,
            kernel_w,
            kernel_h,
            stride_w,
            stride_h,
            pad_w,
            pad_h,
            n_group,
            propagate_back,
            wRegularizer,
            bRegularizer,
            init_weight,
            init_bias,
            with_bias=with_bias,
        )


class SpatialDilatedConvolution(Layer):
    """A convolution over images whose kernel skips pixels.

    Args:
        n_input_plane: The number of input channels.
        n_output_plane: The number of output channels.
        kw: The width of the kernel.
        kh: Its height.
        dw: The step in width.
        dh: The step in height.
        pad_w: Zeros added on both sides.
        pad_h: The same for the height.
        dilation_w: The distance of the kernel's pixels in width.
        dilation_h: The same in height.
        wRegularizer: The regularizer of the weight (outputs, inputs, height, width).
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
        dilation_w: int = 1,
        dilation_h: int = 1,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.inputs = check_count("n_input_plane", n_input_plane)
        outputs = check_count("n_output_plane", n_output_plane)
        kernel = (check_count("kh", kh), check_count("kw", kw))
        self.stride = (check_count("dh", dh), check_count("dw", dw))
        self.pad = (check_count("pad_h", pad_h, least=0), check_count("pad_w", pad_w, least=0))
        self.dilation = (check_count("dilation_h", dilation_h), check_count("dilation_w", dilation_w))
        field = kernel[0] * kernel[1]
        method = bounded(field * self.inputs)
        fans = (self.inputs * field, outputs * field)
        self.declare("weight", (outputs, self.inputs, *kernel), method, fans, regularizer=wRegularizer)
        self.declare("bias", [outputs], method, regularizer=bRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        need_size(self, x, -3, self.inputs, "channels")
        module: Any = self.module
        return F.conv2d(x, module.weight, module.bias, self.stride, self.pad, self.dilation)


class SpatialSeparableConvolution(Layer):
    """A convolution of each channel for itself, then one that mixes the channels.

    Args:
        n_input_channel: The number of input channels.
        n_output_channel: The number of output channels.
        depth_multiplier: How many channels the first convolution makes of each.
        kernel_w: The width of the kernel.
        kernel_h: Its height.
        stride_w: The step in width.
        stride_h: The step in height.
        pad_w: Zeros added on both sides; -1 in both directions for TensorFlow's "SAME".
        pad_h: The same for the height.
        with_bias: Whether a bias is added.
        data_format: "NCHW" or "NHWC".
        w_regularizer: The regularizer of the first weight.
        b_regularizer: The regularizer of the bias.
        p_regularizer: The regularizer of the second weight.
    """

    def __init__(
        self,
        n_input_channel: int,
        n_output_channel: int,
        depth_multiplier: int,
        kernel_w: int,
        kernel_h: int,
        stride_w: int = 1,
        stride_h: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        with_bias: bool = True,
        data_format: str = "NCHW",
        w_regularizer: Any = None,
        b_regularizer: Any = None,
        p_regularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.inputs = check_count("n_input_channel", n_input_channel)
        self.multiplier = check_count("depth_multiplier", depth_multiplier)
        outputs = check_count("n_output_channel", n_output_channel)
        self.kernel = (check_count("kernel_h", kernel_h), check_count("kernel_w", kernel_w))
        self.stride = (check_count("stride_h", stride_h), check_count("stride_w", stride_w))
        self.same, self.pad = check_padding(pad_w, pad_h), (pad_h, pad_w)
        self.with_bias = check_flag("with_bias", with_bias)
        self.last = check_format("data_format", data_format)
        inner = self.inputs * self.multiplier
        # BigDL creates a convolution inside, whose first weights are drawn and then replaced.
        SpatialConvolution(self.inputs, inner, kernel_w, kernel_h, with_bias=False)
        unit = RandomUniform(0.0, 1.0)
        if self.last:
            self.declare("weight0", (kernel_w, kernel_h, self.inputs, self.multiplier), unit, regularizer=w_regularizer)
            self.declare("weight1", (1, 1, inner, outputs), unit, regularizer=p_regularizer)
        else:
            self.declare("weight0", (self.multiplier, self.inputs, kernel_w, kernel_h), unit, regularizer=w_regularizer)
            self.declare("weight1", (outputs, inner, 1, 1), unit, regularizer=p_regularizer)
        self.declare("weight2", [outputs], Zeros(), regularizer=b_regularizer)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 4)
        need_size(self, x, -1 if self.last else -3, self.inputs, "channels")
        return channels_first(self._convolved, x, self.last)

    def _convolved(self, x: torch.Tensor) -> torch.Tensor:
        module: Any = self.module
        depth, point = module.weight0, module.weight1
        if self.last:
            depth = depth.reshape(*self.kernel, self.inputs, self.multiplier).permute(3, 2, 0, 1)
            point = point.permute(3, 2, 0, 1)
        # The first weight is (multiplier, inputs, …); the channels in between are ordered by input.
        depth = depth.reshape(self.multiplier, self.inputs, *self.kernel).transpose(0, 1)
        depth = depth.reshape(self.inputs * self.multiplier, 1, *self.kernel)
        x, pad = padded_same(x, self.kernel, self.stride) if self.same else (x, self.pad)
        inner = F.conv2d(x, depth, None, self.stride, pad, groups=self.inputs)
        return F.conv2d(inner, point, module.weight2 if self.with_bias else None)
