"""Serializes a Keras model for other processes: architecture, weights, compilation and the user's classes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import keras

from orca.errors import ArgumentError


@dataclass(frozen=True)
class Packed:
    """A model as bytes; `custom` holds the objects that its archive only refers to by name."""

    archive: bytes
    custom: bytes

    def open(self) -> Any:
        """Rebuild the model, compiled as before, in any process."""
        custom = cloudpickle.loads(self.custom)
        with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
            path = os.path.join(folder, "model.keras")
            with open(path, "wb") as file:
                file.write(self.archive)
            # The archive holds the user's own model, so its lambdas may run, as they did on the driver.
            return keras.models.load_model(path, custom_objects=custom, safe_mode=False)


def pack(model: Any) -> Packed:
    """Serialize a model; raise if it cannot be rebuilt in another process."""
    custom = dict(_custom_objects(model))
    try:
        with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            with open(path, "rb") as file:
                archive = file.read()
        packed = Packed(archive, cloudpickle.dumps(custom))
        opened = packed.open()
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise ArgumentError(
            f"model={type(model).__name__} {getattr(model, 'name', '')!r} cannot be rebuilt on a worker: "
            f"{lines[0] if lines else type(error).__name__} Give its classes get_config(), or pass "
            "model_creator=fn(config), which creates the model there."
        ) from error
    what = f"model={type(model).__name__} {getattr(model, 'name', '')!r}"
    # Keras only warns and treats the model as compiled.
    if getattr(model, "_loss_tracker", None) is not None and getattr(opened, "_loss_tracker", None) is None:
        raise ArgumentError(
            f"{what} has a custom compile(), which a worker cannot repeat. Give it get_compile_config() and "
            "compile_from_config(), or pass model_creator=fn(config), which creates and compiles the model there."
        )
    optimizer = getattr(model, "optimizer", None)
    if any(getattr(optimizer, f"_exclude_from_weight_decay{part}", None) for part in ("", "_pattern")):
        raise ArgumentError(
            f"{what}: its optimizer excludes weights from weight decay, which Keras' file format does not store. "
            "Pass model_creator=fn(config), which creates and compiles the model on the workers."
        )
    return packed


def _custom_objects(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the user's classes and functions in a model, with the names that Keras looks them up by."""
    parts: list[Any] = [model, *model._flatten_layers(include_self=False)]
    if getattr(model, "optimizer", None) is not None:
        parts.append(model.optimizer)
    parts += list(_leaves(getattr(getattr(model, "_compile_config", None), "config", {})))
    for layer in list(parts):
        # Keras sets a wrapped build() on every layer, which would pull in the layer itself.
        own = vars(layer).items() if hasattr(layer, "__dict__") else ()
        parts += [value for name, value in own if callable(value) and not hasattr(type(layer), name)]
    for part in parts:
        definition = part if isinstance(part, type) or hasattr(part, "__code__") else type(part)
        module = str(getattr(definition, "__module__", ""))
        if module.split(".")[0] in ("keras", "tensorflow", "builtins", "numpy") or not hasattr(definition, "__name__"):
            continue
        yield definition.__name__, definition
        yield keras.saving.get_registered_name(definition), definition


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif value is not None and not isinstance(value, str | int | float | bool):
        yield value
