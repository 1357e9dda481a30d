"""Saving and loading of layers: Orca's own files, and BigDL's protobuf files, which are read only."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from orca.backends.bigdl.definitions import create, describe
from orca.backends.bigdl.layer import KINDS, Layer
from orca.backends.bigdl.protobuf import read_model
from orca.core.arguments import check_flag, check_path
from orca.errors import ArgumentError, DataError

_KEY, _VERSION = "orca.bigdl", 1
_JAVA = b"\xac\xed"


def save_layer(layer: Layer, path: str, weight_path: str | None = None, over_write: bool = False) -> None:
    """Save a layer with its weights.

    Args:
        layer: The layer.
        path: The file for the layer, and for its weights unless `weight_path` is set.
        weight_path: The file for the weights.
        over_write: Whether existing files are replaced.
    """
    check_flag("over_write", over_write)
    for name, target in (("path", path), ("weight_path", weight_path)):
        if target is not None and os.path.exists(check_path(name, target)) and not over_write:
            raise ArgumentError(f"{name}={target!r} exists. Pass over_write=True to replace it.")
    tensors = {name: value.contiguous().clone() for name, value in layer.module.state_dict().items()}
    frozen = [name for name, parameter in layer.module.named_parameters() if not parameter.requires_grad]
    text = json.dumps(
        {"version": _VERSION, "layer": describe(layer), "frozen": frozen, "apart": weight_path is not None}
    )
    if weight_path is None:
        _write(tensors, path, text)
    else:
        _write(tensors, weight_path, json.dumps({"version": _VERSION}))
        _write({}, path, text)


def _write(tensors: dict[str, torch.Tensor], path: str, text: str) -> None:
    partial = f"{path}.partial"
    save_file(tensors, partial, {_KEY: text})
    os.replace(partial, path)


def load_layer(path: str, weight_path: str | None = None) -> Layer:
    """Load a layer from a file of `save_layer`, or from a file that BigDL's `saveModel` has written.

    Args:
        path: The file of the layer.
        weight_path: The file of its weights, if they were saved apart.

    Raises:
        DataError: If the file is none of these, or holds a layer that is not supported.
    """
    for name, source in (("path", path), ("weight_path", weight_path)):
        if source is not None and not os.path.isfile(check_path(name, source)):
            raise ArgumentError(f"{name}={source!r} does not exist.")
    with open(path, "rb") as file:
        head = file.read(16)
    if head.startswith(_JAVA):
        raise DataError(
            f"{path} holds Java objects: it was written by BigDL's save() or by a checkpoint. Load it in BigDL, and "
            "write it again with saveModel(path, weightPath)."
        )
    if head[8:9] != b"{":
        return read_model(path, weight_path)
    text, tensors = _read(path)
    if text["apart"]:
        if weight_path is None:
            raise ArgumentError(f"The weights of {path} were saved apart. Pass their file as weight_path=.")
        _, tensors = _read(weight_path)
    return _restored(text, tensors, path)


def _restored(text: dict[str, Any], tensors: dict[str, torch.Tensor], path: str) -> Layer:
    try:
        layer = create(text["layer"], KINDS)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not describe a layer: {error!r}.") from None
    problems = layer.module.load_state_dict(tensors, strict=False)
    if problems.missing_keys or problems.unexpected_keys:
        raise DataError(f"The weights of {path} do not fit its layers: {problems}.")
    named = dict(layer.module.named_parameters())
    for name in text["frozen"]:
        named[name].requires_grad_(False)
    return layer


def _read(path: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise DataError(f"{path} is not a file of layers.")
            return json.loads(metadata[_KEY]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
