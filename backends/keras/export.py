"""Exports Keras models to SavedModel, ONNX and OpenVINO."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import warnings
from typing import Any

import keras

from orca.backends.openvino.conversion import convert
from orca.errors import ArgumentError, MissingPackageError, suggest
from orca.shards.tree import leaves, tree_map

_NEEDS = {"savedmodel": (), "onnx": ("tf2onnx", "onnx"), "openvino": ("openvino",)}
_SUFFIXES = {"savedmodel": "", "onnx": ".onnx", "openvino": ".xml"}
_ALIASES = {"saved_model": "savedmodel", "tf_saved_model": "savedmodel"}


def export(model: Any, kind: str, path: str, example: Any) -> str:
    """Export a model with a dynamic number of rows.

    Args:
        model: The Keras model.
        kind: "savedmodel", "onnx" or "openvino".
        path: File or folder to write; the suffix of the kind is added if it is missing.
        example: A few rows as for `predict`.

    Returns:
        The path written, with its suffix.
    """
    kind = _ALIASES.get(kind, kind)
    if kind not in _NEEDS:
        kinds = ", ".join(f'"{name}"' for name in _NEEDS)
        raise ArgumentError(f"export({kind!r}): expected one of {kinds} for Keras." + suggest(kind, _NEEDS))
    for package in _NEEDS[kind]:
        try:
            __import__(package)
        except ImportError as error:
            raise MissingPackageError(
                f"export({kind!r}) needs {package}, which is not installed. Run: pip install "
                f'"orca-estimator[{"openvino" if package == "openvino" else "onnx"}]"'
            ) from error
    suffix = _SUFFIXES[kind]
    if suffix and not path.endswith(suffix):
        path += suffix
    # Keras exports only models that have been called.
    output = model(tree_map(keras.ops.convert_to_tensor, example), training=False)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    # Keras and its converters print their progress.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "savedmodel":
            model.export(path, format="tf_saved_model", verbose=False)
        elif kind == "onnx":
            model.export(path, format="onnx", verbose=False)
        else:
            _openvino(model, path, example, output)
    return path


def _openvino(model: Any, path: str, example: Any, output: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
        model.export(folder, format="tf_saved_model", verbose=False)
        own = getattr(model, "inputs", None) or ()
        inputs = list(example) if isinstance(example, dict) else [tensor.name for tensor in own]
        outputs = [f"output_{name}" if name.isdigit() else name for name, _ in leaves(output)]
        convert(folder, path, inputs, outputs)
