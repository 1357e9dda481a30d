"""Normalization layers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F

from orca.backends.bigdl.dimensions import need_dims, need_size
from orca.backends.bigdl.images import channels_first, check_format
from orca.backends.bigdl.initialization import ConstInitMethod, Ones, RandomUniform, Zeros
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import fitted, shape_of
from orca.core.arguments import check_count, check_flag, check_number
from orca.errors import ArgumentError


class BatchNormalization(Layer):
    """Normalizes columns over the batch.

    Args:
        n_output: The number of columns.
        eps: What is added to the variance.
        momentum: How much of the running statistics each batch replaces.
        affine: Whether the result is multiplied by a weight and added to a bias.
        init_weight: The first weight; by default it is drawn from [0, 1).
        init_bias: The first bias; 0 by default.
    """

    dims: tuple[int, ...] = (2, 3)

    def __init__(
        self,
        n_output: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        init_weight: Any = None,
        init_bias: Any = None,
        init_grad_weight: Any = None,
        init_grad_bias: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.size = check_count("n_output", n_output)
        self.eps, self.momentum = check_number("eps", eps), check_number("momentum", momentum)
        self.affine = check_flag("affine", affine)
        if self.affine:
            self.declare("weight", [self.size], RandomUniform(0.0, 1.0), value=init_weight)
            self.declare("bias", [self.size], Zeros(), value=init_bias)
        self.module.register_buffer("running_mean", torch.zeros(self.size))
        self.module.register_buffer("running_var", torch.ones(self.size))

    def set_running_mean(self, running_mean: Any) -> Self:
        """Set the running mean.

        Args:
            running_mean: An array with one value per column.
        """
        return self._set("running_mean", running_mean)

    def set_running_std(self, running_std: Any) -> Self:
        """Set the running variance.

        Args:
            running_std: An array with one value per column.
        """
        return self._set("running_var", running_std)

    def _set(self, name: str, value: Any) -> Self:
        array = np.asarray(value, dtype=np.float32)
        if array.shape != (self.size,):
            raise ArgumentError(f"{name} has shape {array.shape}; expected ({self.size},).")
        getattr(self.module, name).copy_(torch.from_numpy(array))
        return self

    def _entry(self) -> dict[str, Any]:
        module: Any = self.module
        return {
            **super()._entry(),
            "runningMean": module.running_mean.numpy().copy(),
            "runningVar": module.running_var.numpy().copy(),
        }

    def compute(self, x: Any) -> torch.Tensor:
        if x.ndim == 1 and not self.module.training:
            return self.compute(x.unsqueeze(0)).squeeze(0)
        need_dims(self, x, *self.dims)
        need_size(self, x, 1, self.size, "columns")
        return self.normalized(x)

    def normalized(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input normalized over all dimensions but the second."""
        module: Any = self.module
        weight, bias = (module.weight, module.bias) if self.affine else (None, None)
        training = module.training
        return F.batch_norm(x, module.running_mean, module.running_var, weight, bias, training, self.momentum, self.eps)


class SpatialBatchNormalization(BatchNormalization):
    """Normalizes the channels of images over the batch.

    Args:
        n_output: The number of channels.
        eps: What is added to the variance.
        momentum: How much of the running statistics each batch replaces.
        affine: Whether the result is multiplied by a weight and added to a bias.
        init_weight: The first weight; by default it is drawn from [0, 1).
        init_bias: The first bias; 0 by default.
        data_format: "NCHW" or "NHWC".
    """

    def __init__(
        self,
        n_output: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        init_weight: Any = None,
        init_bias: Any = None,
        init_grad_weight: Any = None,
        init_grad_bias: Any = None,
        data_format: str = "NCHW",
        bigdl_type: str = "float",
    ) -> None:
        super().__init__(n_output, eps, momentum, affine, init_weight, init_bias)
        self.last = check_format("data_format", data_format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        batch = x if x.ndim == 4 else x.unsqueeze(0)
        need_size(self, batch, 3 if self.last else 1, self.size, "channels")
        value = channels_first(self.normalized, batch, self.last)
        return value if x.ndim == 4 else value.squeeze(0)


class SpatialCrossMapLRN(Layer):
    """Divides each value by the local energy across channels.

    Args:
        size: The number of channels to sum over.
        alpha: The factor of the sum, which is divided by `size`.
        beta: The exponent.
        k: The summand.
        data_format: "NCHW" or "NHWC".
    """

    def __init__(
        self,
        size: int = 5,
        alpha: float = 1.0,
        beta: float = 0.75,
        k: float = 1.0,
        data_format: str = "NCHW",
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.size = check_count("size", size)
        self.alpha, self.beta, self.k = (
            check_number(name, value) for name, value in (("alpha", alpha), ("beta", beta), ("k", k))
        )
        self.last = check_format("data_format", data_format)

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3, 4)
        batch = x if x.ndim == 4 else x.unsqueeze(0)
        value = channels_first(self._divided, batch, self.last)
        return value if x.ndim == 4 else value.squeeze(0)

    def _divided(self, x: torch.Tensor) -> torch.Tensor:
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)


class SpatialWithinChannelLRN(Layer):
    """Divides each value by the local energy around it in its channel.

    Args:
        size: The side of the square to average over, an odd number.
        alpha: The factor of the average.
        beta: The exponent.
    """

    def __init__(self, size: int = 5, alpha: float = 1.0, beta: float = 0.75, bigdl_type: str = "float") -> None:
        super().__init__()
        self.size = check_count("size", size)
        if self.size % 2 == 0:
            raise ArgumentError(f"size={size}: expected an odd number.")
        self.alpha, self.beta = check_number("alpha", alpha), check_number("beta", beta)

    def compute(self, x: Any) -> torch.Tensor:
        energy = F.avg_pool2d(x.square(), self.size, stride=1, padding=(self.size - 1) // 2, ceil_mode=True)
        return x * (1 + self.alpha * energy).pow(-self.beta)


class LayerNormalization(Layer):
    """Normalizes the last dimension.

    Args:
        hidden_size: Its size.
    """

    def __init__(self, hidden_size: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.size = check_count("hidden_size", hidden_size)
        self.declare("weight", [self.size], Ones())
        self.declare("bias", [self.size], Zeros())

    def compute(self, x: Any) -> torch.Tensor:
        need_size(self, x, -1, self.size, "values in the last dimension")
        module: Any = self.module
        return F.layer_norm(x, (self.size,), module.weight, module.bias, 1e-6)


class Normalize(Layer):
    """Divides rows by their p-norm.

    Args:
        p: The norm; the largest float for the maximum.
        eps: What is added to the norm.
    """

    def __init__(self, p: float, eps: float = 1e-10, bigdl_type: str = "float") -> None:
        super().__init__()
        if p <= 0:
            raise ArgumentError(f"p={p}: expected a positive number.")
        self.p, self.eps = float(p), float(eps)

    def compute(self, x: Any) -> torch.Tensor:
        place = 0 if x.ndim == 1 else 1
        if self.p > 1e300:
            norm = x.abs().amax(dim=place, keepdim=True)
        else:
            norm = (x.abs().pow(self.p).sum(dim=place, keepdim=True) + self.eps).pow(1 / self.p)
        return x / (norm + (self.eps if self.p > 1e300 else 0.0))


class NormalizeScale(Layer):
    """Divides rows by their p-norm and multiplies by a learned tensor.

    Args:
        p: The norm.
        scale: The first value of the tensor.
        size: The shape of the tensor.
        w_regularizer: Its regularizer.
        eps: What is added to the norm.
    """

    def __init__(
        self,
        p: float,
        scale: float,
        size: Any,
        w_regularizer: Any = None,
        eps: float = 1e-10,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.normalize: Normalize = self.attach("normalize", Normalize(p, eps))
        self.declare("weight", shape_of("size", size), ConstInitMethod(scale), regularizer=w_regularizer)

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        return self.normalize.compute(x) * fitted(self, module.weight, x)
