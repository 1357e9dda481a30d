"""Activation functions without weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.debugging import uses_own_stream
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.random_stream import STREAM
from orca.core.arguments import check_number, shown
from orca.errors import ArgumentError, DataError, listed, suggest


class Elementwise(Layer):
    """A function of single values, without arguments."""

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__()


class Inplace(Layer):
    """A function whose signature has `inplace`, which is accepted and has no effect."""

    def __init__(self, inplace: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()


class ReLU(Layer):
    """Computes max(0, x).

    Args:
        ip: Accepted for compatibility; outputs never overwrite inputs.
    """

    def __init__(self, ip: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()

    def compute(self, x: Any) -> torch.Tensor:
        return F.relu(x)


class ReLU6(Inplace):
    """Computes min(6, max(0, x))."""

    def compute(self, x: Any) -> torch.Tensor:
        return F.relu6(x)


class Tanh(Elementwise):
    """Computes the hyperbolic tangent."""

    def compute(self, x: Any) -> torch.Tensor:
        return torch.tanh(x)


class Sigmoid(Elementwise):
    """Computes 1 / (1 + exp(-x))."""

    def compute(self, x: Any) -> torch.Tensor:
        return torch.sigmoid(x)


class LogSigmoid(Elementwise):
    """Computes the logarithm of the sigmoid."""

    def compute(self, x: Any) -> torch.Tensor:
        return F.logsigmoid(x)


class HardSigmoid(Elementwise):
    """Computes 0.2 * x + 0.5, clipped to [0, 1]."""

    def compute(self, x: Any) -> torch.Tensor:
        return (0.2 * x + 0.5).clamp(0.0, 1.0)


class TanhShrink(Elementwise):
    """Computes x - tanh(x)."""

    def compute(self, x: Any) -> torch.Tensor:
        return F.tanhshrink(x)


class SoftSign(Elementwise):
    """Computes x / (1 + |x|)."""

    def compute(self, x: Any) -> torch.Tensor:
        return F.softsign(x)


class LogSoftMax(Elementwise):
    """Computes the logarithm of the softmax of a vector or of the rows of a batch."""

    def compute(self, x: Any) -> torch.Tensor:
        if x.ndim not in (1, 2):
            raise DataError(f"{self!r} received shape {tuple(x.shape)}; expected 1 or 2 dimensions.")
        return F.log_softmax(x, dim=-1)


class SoftMax(Elementwise):
    """Computes the softmax over the last dimension; for images with 4 dimensions over the channels."""

    def compute(self, x: Any) -> torch.Tensor:
        return F.softmax(x, dim=1 if x.ndim == 4 else -1)


class SoftMin(Elementwise):
    """Computes the softmax of -x over the columns of a batch or over the channels of images."""

    def compute(self, x: Any) -> torch.Tensor:
        return F.softmin(x, dim=0 if x.ndim in (1, 3) else 1)


class SoftPlus(Layer):
    """Computes log(1 + exp(beta * x)) / beta.

    Args:
        beta: How sharp the function is.
    """

    def __init__(self, beta: float = 1.0, bigdl_type: str = "float") -> None:
        super().__init__()
        self.beta = check_number("beta", beta)

    def compute(self, x: Any) -> torch.Tensor:
        return F.softplus(x, self.beta)


class _Shrink(Layer):
    def __init__(self, the_lambda: float = 0.5, bigdl_type: str = "float") -> None:
        super().__init__()
        self.threshold = check_number("the_lambda", the_lambda)


class SoftShrink(_Shrink):
    """Moves values towards 0 by lambda, and sets those within ±lambda to 0.

    Args:
        the_lambda: The threshold.
    """

    def compute(self, x: Any) -> torch.Tensor:
        return F.softshrink(x, self.threshold)


class HardShrink(_Shrink):
    """Sets values within ±lambda to 0.

    Args:
        the_lambda: The threshold.
    """

    def compute(self, x: Any) -> torch.Tensor:
        return F.hardshrink(x, self.threshold)


class HardTanh(Layer):
    """Clips values.

    Args:
        min_value: The smallest output.
        max_value: The largest output.
        inplace: Accepted for compatibility.
    """

    def __init__(
        self, min_value: float = -1.0, max_value: float = 1.0, inplace: bool = False, bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        self.low, self.high = check_number("min_value", min_value), check_number("max_value", max_value)
        if self.low > self.high:
            raise ArgumentError(
                f"{type(self).__name__}: the smallest output {self.low} is above the largest {self.high}."
            )

    def compute(self, x: Any) -> torch.Tensor:
        return F.hardtanh(x, self.low, self.high)


class Clamp(HardTanh):
    """Clips values.

    Args:
        min: The smallest output.
        max: The largest output.
    """

    def __init__(self, min: float, max: float, bigdl_type: str = "float") -> None:
        super().__init__(min, max)


class ELU(Layer):
    """Computes x for positive values, alpha * (exp(x) - 1) for the others.

    Args:
        alpha: The factor.
        inplace: Accepted for compatibility.
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.alpha = check_number("alpha", alpha)

    def compute(self, x: Any) -> torch.Tensor:
        return F.elu(x, self.alpha)


class LeakyReLU(Layer):
    """Computes x for positive values, negval * x for the others.

    Args:
        negval: The slope of negative values.
        inplace: Accepted for compatibility.
    """

    def __init__(self, negval: float = 0.01, inplace: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.slope = check_number("negval", negval)

    def compute(self, x: Any) -> torch.Tensor:
        return F.leaky_relu(x, self.slope)


class RReLU(Layer):
    """Multiplies negative values by a random slope; in evaluation by the mean slope.

    Args:
        lower: The smallest slope.
        upper: The largest slope.
        inplace: Accepted for compatibility.
    """

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False, bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        self.lower, self.upper = check_number("lower", lower), check_number("upper", upper)

    def compute(self, x: Any) -> torch.Tensor:
        if not self.module.training:
            return F.leaky_relu(x, (self.lower + self.upper) / 2)
        if not uses_own_stream():
            return F.rrelu(x, self.lower, self.upper, training=True)
        slopes = torch.ones_like(x)
        negative = x <= 0
        drawn = STREAM.uniform(self.lower, self.upper, int(negative.sum()))
        slopes[negative] = torch.from_numpy(drawn).to(x.dtype)
        return x * slopes


class Threshold(Layer):
    """Replaces values up to a threshold.

    Args:
        th: The threshold.
        v: The replacement.
        ip: Accepted for compatibility.
    """

    def __init__(self, th: float = 1e-6, v: float = 0.0, ip: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.threshold, self.value = check_number("th", th), check_number("v", v)

    def compute(self, x: Any) -> torch.Tensor:
        return F.threshold(x, self.threshold, self.value)


class BinaryThreshold(Layer):
    """Computes 1 for values above a threshold, 0 for the others; gradients pass unchanged.

    Args:
        th: The threshold.
        ip: Accepted for compatibility.
    """

    def __init__(self, th: float = 1e-6, ip: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.threshold = check_number("th", th)

    def compute(self, x: Any) -> torch.Tensor:
        return (x > self.threshold).to(x.dtype) + (x - x.detach())


class Identity(Elementwise):
    """Returns the input, a tensor or a table."""

    def compute(self, x: Any) -> Any:
        return x


class Contiguous(Identity):
    """Returns the input."""


class Echo(Identity):
    """Prints the shape of the input and returns it."""

    def compute(self, x: Any) -> Any:
        print(f"{self.name()} : Activation size is {'x'.join(map(str, x.shape))}")
        return x


ACTIVATIONS: dict[str, type[Layer]] = {
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "hard_sigmoid": HardSigmoid,
    "relu": ReLU,
    "relu6": ReLU6,
    "softmax": SoftMax,
    "softmin": SoftMin,
    "softplus": SoftPlus,
    "softsign": SoftSign,
    "tanh_shrink": TanhShrink,
    "log_sigmoid": LogSigmoid,
    "log_softmax": LogSoftMax,
    "elu": ELU,
    "leakyrelu": LeakyReLU,
    "linear": Identity,
}


def activation_of(value: Any, name: str = "activation") -> Layer:
    """Return the layer for an activation, a layer or its name."""
    if isinstance(value, Layer):
        return value
    if isinstance(value, str):
        key = value.lower()
        if key in ACTIVATIONS:
            return ACTIVATIONS[key]()
        raise ArgumentError(
            f"{name}={value!r} is not an activation.{suggest(key, ACTIVATIONS) or f' Known: {listed(ACTIVATIONS)}.'}"
        )
    raise ArgumentError(f"{name}={shown(value)}: expected a layer or the name of an activation.")
