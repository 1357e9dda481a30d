"""A Keras model on its way to other processes: architecture, weights, compilation, and the user's own classes."""

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
    """A model as bytes; `custom` holds what its file only names."""

    archive: bytes
    custom: bytes

    def open(self) -> Any:
        """The model again, compiled as it was, in any process."""
        custom = cloudpickle.loads(self.custom)
        with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
            path = os.path.join(folder, "model.keras")
            with open(path, "wb") as file:
                file.write(self.archive)
            # What is in the archive is the user's own: lambdas in it may run, as they did on the driver.
            return keras.models.load_model(path, custom_objects=custom, safe_mode=False)


def pack(model: Any) -> Packed:
    """Turn a model into bytes, or say what keeps it from being rebuilt elsewhere."""
    found = dict(_custom_objects(model))
    try:
        with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            with open(path, "rb") as file:
                archive = file.read()
        packed = Packed(archive, cloudpickle.dumps(found))
        opened = packed.open()
    except Exception as error:
        told = str(error).strip().splitlines()
        raise ArgumentError(
            f"model={type(model).__name__} {getattr(model, 'name', '')!r} cannot be rebuilt on a worker: "
            f"{told[0] if told else type(error).__name__} Give its classes get_config(), or hand over "
            "model_creator=fn(config), which makes the model there."
        ) from error
    what = f"model={type(model).__name__} {getattr(model, 'name', '')!r}"
    # Keras only warns, and calls the model compiled.
    if getattr(model, "_loss_tracker", None) is not None and getattr(opened, "_loss_tracker", None) is None:
        raise ArgumentError(
            f"{what} has a compile() of its own, which a worker cannot repeat. Give it get_compile_config() and "
            "compile_from_config(), or hand over model_creator=fn(config), which makes and compiles the model there."
        )
    optimizer = getattr(model, "optimizer", None)
    if any(getattr(optimizer, f"_exclude_from_weight_decay{part}", None) for part in ("", "_pattern")):
        raise ArgumentError(
            f"{what}: what its optimizer excludes from weight decay is not part of Keras' files, by which it travels. "
            "Hand over model_creator=fn(config), which makes and compiles the model on the workers."
        )
    return packed


def _custom_objects(model: Any) -> Iterator[tuple[str, Any]]:
    """The user's own classes and functions that a model is made of, by the names under which Keras looks for them."""
    parts: list[Any] = [model, *model._flatten_layers(include_self=False)]
    if getattr(model, "optimizer", None) is not None:
        parts.append(model.optimizer)
    parts += list(_leaves(getattr(getattr(model, "_compile_config", None), "config", {})))
    for layer in list(parts):
        # Keras puts a wrapped build() into every layer, which would bring the layer itself.
        own = vars(layer).items() if hasattr(layer, "__dict__") else ()
        parts += [value for name, value in own if callable(value) and not hasattr(type(layer), name)]
    for part in parts:
        maker = part if isinstance(part, type) or hasattr(part, "__code__") else type(part)
        module = str(getattr(maker, "__module__", ""))
        if module.split(".")[0] in ("keras", "tensorflow", "builtins", "numpy") or not hasattr(maker, "__name__"):
            continue
        yield maker.__name__, maker
        yield keras.saving.get_registered_name(maker), maker


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif value is not None and not isinstance(value, str | int | float | bool):
        yield value
