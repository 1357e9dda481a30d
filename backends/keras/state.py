"""Weights, optimizer slots and random seeds of Keras objects as plain arrays, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from orca.backends.keras.engine import engine
from orca.errors import DataError


def named_weights(model: Any) -> dict[str, Any]:
    """The weights by their paths; of equal paths the later ones get a number."""
    found: dict[str, Any] = {}
    for variable in model.weights:
        found[_free(variable.path, found)] = engine.value_of(variable)
    return found


def _free(path: str, taken: Any) -> str:
    name, number = path, 2
    while name in taken:
        name, number = f"{path}#{number}", number + 1
    return name


def load_weights(model: Any, told: dict[str, Any]) -> None:
    """Put arrays into a model of the same architecture; layers made in another process may have other names."""
    variables, values = model.weights, list(told.values())
    if [tuple(variable.shape) for variable in variables] != [np.shape(value) for value in values]:
        shapes = {name: np.shape(value) for name, value in told.items()}
        mine = {variable.path: tuple(variable.shape) for variable in variables}
        raise DataError(f"The weights do not fit this model. They are {shapes}; the model has {mine}.")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def optimizers_of(model: Any) -> dict[str, Any]:
    """The compiled optimizer and those that the user's own model keeps beside it, by attribute."""
    found: dict[str, Any] = {}
    if getattr(model, "optimizer", None) is not None:
        found["optimizer"] = model.optimizer
    for name, value in vars(model).items():
        if isinstance(value, keras.optimizers.Optimizer) and all(value is not known for known in found.values()):
            found[name.lstrip("_")] = value
    return found


def optimizer_state(optimizer: Any) -> list[Any]:
    return [engine.value_of(variable) for variable in optimizer.variables]


def weights_of(optimizer: Any, model: Any) -> list[int] | None:
    """The places among the model's weights of those that an optimizer was built for, if it was."""
    places = {id(variable): place for place, variable in enumerate(model.weights)}
    found = [places[id(variable)] for variable in optimizer._trainable_variables if id(variable) in places]
    return found if found and len(found) == len(optimizer._trainable_variables) else None


def load_optimizer(optimizer: Any, told: list[Any], model: Any, places: Sequence[int] | None = None) -> None:
    """Take over an optimizer's state; one that has no slots yet is built for the weights in these places, or for all
    that are trained."""
    if not optimizer.built and len(told) != len(optimizer.variables):
        weights = model.weights
        optimizer.build(model.trainable_variables if places is None else [weights[place] for place in places])
    variables = optimizer.variables
    if [tuple(variable.shape) for variable in variables] != [np.shape(value) for value in told]:
        raise DataError("The optimizer's state does not fit this optimizer: was it saved with another one?")
    for variable, value in zip(variables, told, strict=True):
        variable.assign(value)


def load_optimizers(optimizers: dict[str, Any], state: dict[str, Any], model: Any) -> None:
    """Take over the states of those optimizers that a saved state knows."""
    told, places = state.get("optimizer") or {}, state.get("weights_of") or {}
    for name, optimizer in optimizers.items():
        if name in told:
            load_optimizer(optimizer, told[name], model, places.get(name))


def seed_states(model: Any) -> list[Any]:
    """The states of the model's random generators: what is a variable but not a weight."""
    weights = {id(variable) for variable in model.weights}
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    return [
        variable
        for variable in model.variables
        if id(variable) not in weights and id(variable) not in metrics and tuple(variable.shape) == (2,)
    ]
