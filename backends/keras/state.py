"""Converts weights, optimizer slots and random seeds of Keras objects to plain arrays and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from orca.backends.keras.engine import engine
from orca.errors import DataError


def named_weights(model: Any) -> dict[str, Any]:
    """Return the weights by path; repeated paths get a number."""
    weights: dict[str, Any] = {}
    for variable in model.weights:
        weights[_free(variable.path, weights)] = engine.value_of(variable)
    return weights


def _free(path: str, taken: Any) -> str:
    name, number = path, 2
    while name in taken:
        name, number = f"{path}#{number}", number + 1
    return name


def load_weights(model: Any, weights: dict[str, Any]) -> None:
    """Load arrays by position into a model of the same architecture; names differ between processes."""
    variables, values = model.weights, list(weights.values())
    if [tuple(variable.shape) for variable in variables] != [np.shape(value) for value in values]:
        shapes = {name: np.shape(value) for name, value in weights.items()}
        expected = {variable.path: tuple(variable.shape) for variable in variables}
        raise DataError(f"The weights do not fit this model. Received {shapes}; the model has {expected}.")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the compiled optimizer and further optimizers that are attributes of a custom model, by name."""
    optimizers: dict[str, Any] = {}
    if getattr(model, "optimizer", None) is not None:
        optimizers["optimizer"] = model.optimizer
    for name, value in vars(model).items():
        if isinstance(value, keras.optimizers.Optimizer) and all(value is not other for other in optimizers.values()):
            optimizers[name.lstrip("_")] = value
    return optimizers


def optimizer_state(optimizer: Any) -> list[Any]:
    return [engine.value_of(variable) for variable in optimizer.variables]


def weights_of(optimizer: Any, model: Any) -> list[int] | None:
    """Return the indices of the model's weights that an optimizer was built for; None if it was not built."""
    positions = {id(variable): index for index, variable in enumerate(model.weights)}
    indices = [positions[id(variable)] for variable in optimizer._trainable_variables if id(variable) in positions]
    return indices if indices and len(indices) == len(optimizer._trainable_variables) else None


def load_optimizer(optimizer: Any, state: list[Any], model: Any, indices: Sequence[int] | None = None) -> None:
    """Load an optimizer's state; if it has no slots yet, build it for the weights with these indices, or for all
    trainable ones."""
    if not optimizer.built and len(state) != len(optimizer.variables):
        weights = model.weights
        optimizer.build(model.trainable_variables if indices is None else [weights[index] for index in indices])
    variables = optimizer.variables
    if [tuple(variable.shape) for variable in variables] != [np.shape(value) for value in state]:
        raise DataError("The optimizer's state does not fit this optimizer: was it saved with another one?")
    for variable, value in zip(variables, state, strict=True):
        variable.assign(value)


def load_optimizers(optimizers: dict[str, Any], state: dict[str, Any], model: Any) -> None:
    """Load the states of the optimizers that a saved state contains."""
    saved, indices = state.get("optimizer") or {}, state.get("weights_of") or {}
    for name, optimizer in optimizers.items():
        if name in saved:
            load_optimizer(optimizer, saved[name], model, indices.get(name))


def seed_states(model: Any) -> list[Any]:
    """Return the states of the model's random generators: variables that are neither weights nor metrics."""
    weights = {id(variable) for variable in model.weights}
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    return [
        variable
        for variable in model.variables
        if id(variable) not in weights and id(variable) not in metrics and tuple(variable.shape) == (2,)
    ]
