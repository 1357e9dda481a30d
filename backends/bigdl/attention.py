"""Attention and the feed-forward network of transformers."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.dimensions import need_dims
from orca.backends.bigdl.initialization import Xavier, Zeros
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.linear import Linear
from orca.backends.bigdl.noise import Dropout
from orca.backends.bigdl.table_layers import several
from orca.core.arguments import check_count, check_number
from orca.errors import ArgumentError, DataError


def dense(inputs: int, outputs: int, with_bias: bool = True) -> Linear:
    """Return a linear layer with the first weights of transformers."""
    return Linear(inputs, outputs, with_bias).set_init_method(Xavier(), Zeros())


class Attention(Layer):
    """Attention with several heads, for a table of queries (batch, time, size), keys and values, and a bias.

    Args:
        hidden_size: The size of queries, keys and values.
        num_heads: The number of heads.
        attention_dropout: The probability to *keep* a weight in training.
    """

    def __init__(self, hidden_size: int, num_heads: int, attention_dropout: float, bigdl_type: str = "float") -> None:
        super().__init__()
        self.size, self.heads = check_count("hidden_size", hidden_size), check_count("num_heads", num_heads)
        if self.size % self.heads:
            raise ArgumentError(f"hidden_size={hidden_size} is not a multiple of num_heads={num_heads}.")
        names = ("query", "key", "value", "output")
        self.parts: dict[str, Linear] = {name: self.attach(name, dense(self.size, self.size, False)) for name in names}
        kept = check_number("attention_dropout", attention_dropout)
        self.drop: Dropout = self.attach("drop", Dropout(1.0 - kept))

    def compute(self, x: Any) -> torch.Tensor:
        parts = several(self, x)
        if len(parts) != 3:
            raise DataError(f"{self!r} needs a table of three tensors: queries, keys, bias; received {len(parts)}.")
        queries, keys, bias = parts
        need_dims(self, queries, 3)
        q, k, v = (
            self.parts[name].product(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name, source in (("query", queries), ("key", keys), ("value", keys))
        )
        scores = (q * (self.size // self.heads) ** -0.5) @ k.mT + bias
        value = self.drop.module(scores.softmax(dim=-1)) @ v
        return self.parts["output"].product(value.transpose(1, 2).flatten(2))


class FeedForwardNetwork(Layer):
    """Two linear layers with ReLU and dropout in between, for each time step.

    Args:
        hidden_size: The size of input and output.
        filter_size: The size in between.
        relu_dropout: The probability to *keep* a value in training.
    """

    def __init__(self, hidden_size: int, filter_size: int, relu_dropout: float, bigdl_type: str = "float") -> None:
        super().__init__()
        self.first: Linear = self.attach("filter", dense(hidden_size, filter_size))
        self.drop: Dropout = self.attach("drop", Dropout(1.0 - check_number("relu_dropout", relu_dropout)))
        self.second: Linear = self.attach("output", dense(filter_size, hidden_size))

    def compute(self, x: Any) -> torch.Tensor:
        need_dims(self, x, 3)
        return self.second.product(self.drop.module(self.first.product(x).relu()))
