"""Fully connected layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca.backends.bigdl.activations import activation_of
from orca.backends.bigdl.dimensions import need_dims, need_size
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.scaling import bounded
from orca.core.arguments import check_count, check_flag
from orca.errors import DataError


class Linear(Layer):
    """Multiplies rows by a matrix and adds a bias.

    Args:
        input_size: The number of values per row.
        output_size: The number of outputs per row.
        with_bias: Whether a bias is added.
        wRegularizer: The regularizer of the weight (outputs, inputs).
        bRegularizer: The regularizer of the bias.
        init_weight: The first weight instead of a random one.
        init_bias: The first bias.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        with_bias: bool = True,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        init_weight: Any = None,
        init_bias: Any = None,
        init_grad_weight: Any = None,
        init_grad_bias: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.input_size = check_count("input_size", input_size)
        self.output_size = check_count("output_size", output_size)
        method = bounded(self.input_size)
        shape = (self.output_size, self.input_size)
        self.declare("weight", shape, method, value=init_weight, regularizer=wRegularizer)
        self.with_bias = check_flag("with_bias", with_bias)
        if self.with_bias:
            self.declare("bias", shape[:1], method, value=init_bias, regularizer=bRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise DataError(
                f"{self!r} received shape {tuple(x.shape)}; expected (rows, {self.input_size}) or ({self.input_size},)."
                + (" Use TimeDistributed or Bottle for more dimensions." if x.ndim > 2 else "")
            )
        return self.product(x)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for any number of leading dimensions."""
        module: Any = self.module
        return F.linear(x, module.weight, module.bias if self.with_bias else None)


class Bilinear(Layer):
    """Computes `x1 @ W[k] @ x2 + b[k]` for every output k, for a table of two batches.

    Args:
        input_size1: The number of columns of the first batch.
        input_size2: The number of columns of the second batch.
        output_size: The number of outputs.
        bias_res: Whether a bias is added.
        wRegularizer: The regularizer of the weight.
        bRegularizer: The regularizer of the bias.
    """

    def __init__(
        self,
        input_size1: int,
        input_size2: int,
        output_size: int,
        bias_res: bool = True,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        shape = tuple(
            check_count(name, value)
            for name, value in (
                ("output_size", output_size),
                ("input_size1", input_size1),
                ("input_size2", input_size2),
            )
        )
        self.declare("weight", shape, bounded(shape[1]), regularizer=wRegularizer)
        self.with_bias = check_flag("bias_res", bias_res)
        if self.with_bias:
            self.declare("bias", shape[:1], bounded(shape[1]), regularizer=bRegularizer)

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        first, second = x
        need_dims(self, first, 2)
        need_size(self, first, 1, module.weight.shape[1], "columns in the first tensor")
        need_size(self, second, -1, module.weight.shape[2], "columns in the second tensor")
        return F.bilinear(first, second, module.weight, module.bias if self.with_bias else None)


class Cosine(Layer):
    """Computes the cosine similarity of rows to learned centers.

    Args:
        input_size: The number of values per row.
        output_size: The number of centers.
    """

    def __init__(self, input_size: int, output_size: int, bigdl_type: str = "float") -> None:
        super().__init__()
        shape = (check_count("output_size", output_size), check_count("input_size", input_size))
        self.declare("weight", shape, bounded(shape[0]))

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        need_dims(self, x, 1, 2)
        need_size(self, x, -1, module.weight.shape[1], "values per row")
        norm = x.norm(dim=-1, keepdim=True) + (1e-12 if x.ndim == 1 else 0.0)
        return F.linear(x, module.weight) / (module.weight.norm(dim=1) + 1e-12) / norm


class Euclidean(Layer):
    """Computes the Euclidean distance of rows to learned centers.

    Args:
        input_size: The number of values per row.
        output_size: The number of centers.
        fast_backward: Accepted for compatibility.
    """

    def __init__(
        self, input_size: int, output_size: int, fast_backward: bool = True, bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        shape = (check_count("input_size", input_size), check_count("output_size", output_size))
        self.declare("weight", shape, bounded(shape[0]), fans=shape)

    def compute(self, x: Any) -> torch.Tensor:
        module: Any = self.module
        need_dims(self, x, 1, 2)
        need_size(self, x, -1, module.weight.shape[0], "values per row")
        return (x.unsqueeze(-1) - module.weight).norm(dim=-2)


class Maxout(Layer):
    """Takes the maximum of several linear layers.

    Args:
        input_size: The number of values per row.
        output_size: The number of outputs per row.
        maxout_number: The number of linear layers.
        with_bias: Whether a bias is added.
        w_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        init_weight: The first weight instead of a random one.
        init_bias: The first bias.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        maxout_number: int,
        with_bias: bool = True,
        w_regularizer: Any = None,
        b_regularizer: Any = None,
        init_weight: Any = None,
        init_bias: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.output_size = check_count("output_size", output_size)
        self.number = check_count("maxout_number", maxout_number)
        outputs = self.output_size * self.number
        self.linear: Linear = self.attach(
            "linear",
            Linear(input_size, outputs, with_bias, w_regularizer, b_regularizer, init_weight, init_bias),
        )

    def compute(self, x: Any) -> torch.Tensor:
        return self.linear.module(x).unflatten(-1, (self.number, self.output_size)).amax(dim=-2)


class Highway(Layer):
    """Mixes the input with a transformed input, by a learned gate.

    Args:
        size: The number of values per row.
        with_bias: Whether biases are added.
        activation: The activation of the transformed input, a layer or its name.
        wRegularizer: The regularizer of both weights.
        bRegularizer: The regularizer of both biases.
    """

    def __init__(
        self,
        size: int,
        with_bias: bool = True,
        activation: Any = None,
        wRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        gate = Linear(size, size, with_bias, wRegularizer, bRegularizer)
        transform = Linear(size, size, with_bias, wRegularizer, bRegularizer)
        self.gate: Linear = self.attach("gate", gate)
        self.transform: Linear = self.attach("transform", transform)
        self.activation = None if activation is None else self.attach("activation", activation_of(activation))

    def compute(self, x: Any) -> torch.Tensor:
        gate = torch.sigmoid(self.gate.module(x))
        value = self.transform.module(x)
        if self.activation is not None:
            value = self.activation.module(value)
        return gate * value + (1 - gate) * x
