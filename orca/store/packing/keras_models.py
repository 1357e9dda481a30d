"""Keras models in a store: kept as .keras, converted to OpenVINO; read back in Keras' safe mode."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orca.backends.registry import find
from orca.errors import ArgumentError, DataError, UntrustedError
from orca.shards.tree import tree_map
from orca.store.packing.archives import check_members
from orca.store.packing.facts import NATIVE, Facts, Request, checked_sample, random_rows

FILE = f"{NATIVE}/model.keras"
_OWN = ("keras", "builtins")


def is_keras(model: Any) -> bool:
    """Return whether an object is a Keras model, without importing Keras."""
    return any(base.__module__.startswith("keras.") and base.__name__ == "Model" for base in type(model).__mro__)


def pack(model: Any, folder: Path, request: Request, file: Path | None = None) -> Facts:
    """Write a Keras model, or copy the file that it comes from, and convert it."""
    from orca.backends.openvino.accelerating import accelerate

    framework = find("keras", "multiworker").framework
    sample = _sample(model, request.example)
    output = _output(model, sample)
    target = folder / FILE
    target.parent.mkdir(exist_ok=True)
    if file is None:
        framework.write_model(model, str(target))
    else:
        target.write_bytes(file.read_bytes())
    check_members(target)
    history = getattr(getattr(model, "history", None), "history", None)
    return Facts(
        "keras",
        accelerate(framework, model, sample, output, None),
        {"form": "keras", "file": FILE},
        sample,
        ("keras", "tensorflow-cpu", "tensorflow"),
        history=history or None,
    )


def _sample(model: Any, example: Any) -> Any:
    import keras

    inputs = getattr(model, "inputs", None)
    if example is not None:
        sample = checked_sample(example)
        kinds = {keras.backend.standardize_dtype(tensor.dtype) for tensor in inputs or ()}
        if len(kinds) == 1 and np.dtype(next(iter(kinds))).kind == "f":
            # Keras casts integers, such as the pixels of images, to the type of its inputs.
            sample = tree_map(lambda leaf: leaf.astype(next(iter(kinds))), sample)
        return sample
    if not inputs:
        raise ArgumentError("example=None: the Keras model does not know its inputs yet: pass a few rows.")
    if any(None in tensor.shape[1:] for tensor in inputs):
        raise ArgumentError("example=None: the Keras model has open axes other than its rows: pass a few rows.")

    def blank(tensor: Any) -> Any:
        return np.empty((0, *tensor.shape[1:]), keras.backend.standardize_dtype(tensor.dtype))

    return random_rows(blank(inputs[0]) if len(inputs) == 1 else keras.tree.map_structure(blank, model.input))


def _output(model: Any, sample: Any) -> Any:
    import keras

    try:
        output = model(tree_map(keras.ops.convert_to_tensor, sample), training=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"example= does not fit the model: {reason}. Give a few rows as for predict.") from error
    return keras.tree.map_structure(keras.ops.convert_to_numpy, output)


def read(path: Path, trusted: bool, custom_objects: Mapping[str, Any] | None = None, label: str = "") -> Any:
    """Load a .keras file; without trust, code in it and foreign classes are refused before anything is loaded."""
    label = label or path.name
    check_members(path)
    import keras

    custom = dict(custom_objects or {})
    if not trusted:
        _check_classes(path, custom, label)
    try:
        return keras.saving.load_model(str(path), custom_objects=custom, safe_mode=not trusted)
    except Exception as error:
        text = " ".join(str(error).split())
        if not trusted and ("safe_mode" in text or "unsafe" in text.lower()):
            raise _untrusted(label, "it holds code (a Lambda layer)") from error
        raise DataError(f"{label} cannot be loaded by Keras: {text[:300]}") from error


def _untrusted(label: str, reason: str) -> UntrustedError:
    return UntrustedError(
        f"{label} is not loaded: {reason}, which would run in this process. Pass trusted=True if you trust it, or use "
        "the converted model (runtime.model(name).predict), which is data."
    )


def _check_classes(path: Path, custom: Mapping[str, Any], label: str) -> None:
    """Raise if the file names classes or functions that Keras would import from other packages, or a Lambda."""
    import keras

    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{label} is not a .keras file: {error}") from error
    for entry in _objects(config):
        name, module = str(entry.get("class_name")), str(entry.get("module") or "keras")
        registered = entry.get("registered_name") or name
        if name in ("Lambda", "__lambda__"):
            raise _untrusted(label, f"it holds code (a {name} object)")
        is_own = module.split(".")[0] in _OWN
        if is_own or {name, registered} & set(custom) or keras.saving.get_registered_object(registered) is not None:
            continue
        raise UntrustedError(
            f"{label} is not loaded: it uses {name!r} of the module {module!r}, which would be imported. Pass "
            f"custom_objects={{{name!r}: {name}}}, or trusted=True if you trust it."
        )


def _objects(tree: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(tree, dict):
        if "class_name" in tree:
            yield tree
        for value in tree.values():
            yield from _objects(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _objects(value)
