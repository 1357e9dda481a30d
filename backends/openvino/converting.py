"""Converts torch and Keras models, and files that only these frameworks can read, to OpenVINO."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import openvino

from orca.backends.openvino.core import core, first_line
from orca.backends.openvino.ports import sides
from orca.backends.registry import find
from orca.errors import ArgumentError, DataError, MissingPackageError, OrcaError
from orca.shards.tree import as_arrays, leaves


def load_keras(path: str) -> Any:
    """Load the model in a .keras file."""
    try:
        import keras
    except ImportError as error:
        raise _missing("keras", "tensorflow", path) from error
    return keras.saving.load_model(path, compile=False)


def load_torch(path: str) -> Any:
    """Load the TorchScript or ExportedProgram in a file."""
    try:
        import torch
    except ImportError as error:
        raise _missing("torch", "torch", path) from error
    if path.lower().endswith(".pt2"):
        return torch.export.load(path)
    try:
        return torch.jit.load(path, map_location="cpu").eval()
    except RuntimeError as error:
        raise DataError(
            f"model_path={path!r} holds no TorchScript. Weights alone are not a model: save it with est.export, "
            "torch.jit.save or torch.export.save, or pass the model itself as model=."
        ) from error


def _missing(package: str, extra: str, path: str) -> MissingPackageError:
    return MissingPackageError(
        f'model_path={path!r} needs {package}, which is not installed. Run: pip install "orca-estimator[{extra}]"'
    )


def convert(model: Any, shape: Any, example: Any) -> Any:
    """Convert a model object; a torch module needs the shape of its inputs, or an example."""
    kind = _kind(model)
    if kind == "keras":
        return _exported("keras", "multiworker", model, _keras_example(model) if example is None else example)
    if kind == "script":
        return _converted(model, input=_script_shapes(shape, example))
    if kind == "program":
        network = _converted(model)
        # The converter loses all dimensions; the program's example has them.
        args, kwargs = model.example_inputs or ((), {})
        tensors = [tensor for _, tensor in leaves([args, kwargs]) if hasattr(tensor, "shape")]
        if len(tensors) == len(network.inputs):
            shapes = [[-1, *tensor.shape[1:]] for tensor in tensors]
            network.reshape(dict(zip(network.inputs, shapes, strict=True)))
        return network
    if kind == "torch":
        if example is None:
            example = _zeros(shape)
        return _exported("torch", "torch_distributed", model, as_arrays(example))
    raise ArgumentError(
        f"received a {type(model).__name__}; expected a torch.nn.Module, TorchScript, torch.export.ExportedProgram, "
        "keras.Model or openvino.Model."
    )


def _kind(model: Any) -> str:
    for base in type(model).__mro__:
        module, name = base.__module__, base.__name__
        if module.startswith("torch.jit") and name in ("ScriptModule", "RecursiveScriptModule"):
            return "script"
        if module.startswith("torch.export") and name == "ExportedProgram":
            return "program"
        if module.startswith("torch.nn") and name == "Module":
            return "torch"
        if module.startswith("keras.") and name == "Model":
            return "keras"
    return ""


def _exported(framework: str, backend: str, model: Any, example: Any) -> Any:
    """Convert through the export of the framework's own backend, which keeps the batch size dynamic."""
    with tempfile.TemporaryDirectory(prefix="orca-openvino-") as folder:
        path = find(framework, backend).framework.export(model, "openvino", f"{folder}/model.xml", example)
        # A model read by path maps its files; these are temporary.
        with open(path, "rb") as xml, open(path[:-4] + ".bin", "rb") as weights:
            return core().read_model(xml.read(), weights.read())


def _converted(model: Any, **options: Any) -> Any:
    try:
        with _quiet():
            return openvino.convert_model(model, **{key: value for key, value in options.items() if value is not None})
    except OrcaError:
        raise
    except Exception as error:
        raise DataError(f"OpenVINO cannot convert the model: {first_line(error)}.") from error


def _script_shapes(shape: Any, example: Any) -> Any:
    if shape is None and example is not None:
        arrays = as_arrays(example)
        arrays = list(arrays.values()) if isinstance(arrays, Mapping) else arrays
        arrays = arrays if isinstance(arrays, list | tuple) else [arrays]
        return [([-1, *array.shape[1:]], array.dtype.type) for array in arrays]
    if shape is None or isinstance(shape, Mapping):
        return None
    several = all(isinstance(entry, list | tuple) for entry in shape)
    return [sides(entry) for entry in shape] if several else [sides(shape)]


def _zeros(shape: Any) -> Any:
    """Return two rows of zeros of this shape."""
    if shape is None:
        raise ArgumentError(
            "a torch module does not know the shape of its inputs: pass shape=, such as (None, 3, 224, 224), or "
            "example=, a few rows."
        )
    if isinstance(shape, Mapping):
        return {name: _zeros(entry) for name, entry in shape.items()}
    if all(isinstance(entry, list | tuple) for entry in shape):
        return tuple(_zeros(entry) for entry in shape)
    rest = sides(shape)[1:]
    if -1 in rest:
        raise ArgumentError(f"shape={shape!r}: only the first axis, the rows, may be None.")
    return np.zeros((2, *rest), np.float32)


def _keras_example(model: Any) -> Any:
    import keras

    def zeros(tensor: Any) -> Any:
        if None in tensor.shape[1:]:
            raise ArgumentError("the Keras model has open axes other than its rows: pass example=, a few rows.")
        return np.zeros((2, *tensor.shape[1:]), keras.backend.standardize_dtype(tensor.dtype))

    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ArgumentError("the Keras model does not know its inputs yet: pass example=, a few rows.")
    return zeros(inputs[0]) if len(inputs) == 1 else keras.tree.map_structure(zeros, model.input)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the output and warnings of the converters."""
    logger = logging.getLogger("openvino")
    level = logger.level
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
