"""What layers do with data: predict, evaluate, train. The public package registers these functions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orca.errors import OrcaError

ACTIONS: dict[str, Callable[..., Any]] = {}
"""Functions by name; each takes the layer first. They belong to a level above this one, so they are not imported."""


def register(name: str, function: Callable[..., Any]) -> None:
    """Set the function for an action such as "predict"."""
    ACTIONS[name] = function


def act(name: str, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an action on a layer."""
    if name not in ACTIONS:
        raise OrcaError(f"{name}() needs the package orca.bigdl, which has not been imported. Add `import orca.bigdl`.")
    return ACTIONS[name](layer, *args, **kwargs)
