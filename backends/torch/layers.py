"""What the layers of a model tell about its inputs and outputs without running it."""

from __future__ import annotations

from typing import Any

from torch import nn

from orca.errors import DataError
from orca.shards.tree import leaves

_SAME_WIDTH = (
    nn.Identity,
    nn.Dropout,
    nn.AlphaDropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softmax,
    nn.LogSoftmax,
)
"""Layers whose output has the shape of their input, whatever that is."""


def _chain(model: Any) -> list[nn.Module]:
    """Return the layers that run one after another; empty if only the model's own code knows."""
    if not isinstance(model, nn.Module) or _is_hooked(model):
        return []
    if type(model) is not nn.Sequential:
        return [model]
    parts = [_chain(part) for part in model]
    return [] if not all(parts) else [layer for part in parts for layer in part]


def _is_hooked(model: nn.Module) -> bool:
    return bool(model._forward_pre_hooks or model._forward_hooks)


def first_linear(model: Any) -> nn.Linear | None:
    """Return the linear layer that gets the features as they are; None if there is none."""
    return _first_linear(_chain(model))


def last_linear(model: Any) -> nn.Linear | None:
    """Return the linear layer whose output has the width of the model's output; None if there is none."""
    return _first_linear(_chain(model)[::-1])


def _first_linear(layers: list[nn.Module]) -> nn.Linear | None:
    for layer in layers:
        if type(layer) is nn.Linear:
            return layer
        if type(layer) not in _SAME_WIDTH:
            return None
    return None


def check_width(model: Any, features: Any) -> None:
    """Raise if the first layer of a model takes rows of another width."""
    first = first_linear(model)
    if first is None or hasattr(features, "keys"):
        return
    arrays = [leaf for _, leaf in leaves(features)]
    if len(arrays) != 1:
        raise DataError(
            f"x of the data has {len(arrays)} parts, but the model takes one input. Join them to one array."
        )
    shape = arrays[0].shape
    if len(shape) > 1 and shape[-1] != first.in_features:
        raise DataError(
            f"x of the data has {shape[-1]} features in each row (shape {tuple(shape)}); the model's first layer, "
            f"{first}, takes {first.in_features}."
        )
    if len(shape) == 1 and shape[0]:
        raise DataError(
            f"x of the data has shape {tuple(shape)}, one number per row; the model's first layer, {first}, takes rows "
            f"of {first.in_features}. Give a matrix, for example x[:, None]."
        )
