"""Model files and folders in a store: what may be put, how it is kept, and what only trust gives back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import ArgumentError, DataError
from orca.shards.tree import leaves, tree_map
from orca.store.packing import keras_models
from orca.store.packing.archives import check_members, check_no_pickles
from orca.store.packing.facts import NATIVE, Facts, Request, checked_sample, rows_for

if TYPE_CHECKING:
    from orca.backends.openvino.spec import OpenvinoSpec

_REFUSED = {
    ".pkl": "a pickle", ".pickle": "a pickle", ".joblib": "a joblib file", ".dill": "a dill file", ".pth": "a pickle",
    ".ckpt": "a pickle", ".npy": "an array", ".npz": "arrays", ".h5": "an HDF5 file", ".hdf5": "an HDF5 file",
    ".bin": "weights alone", ".safetensors": "weights alone",
}  # fmt: skip
_PROGRAMS = {".pt2": "exported_program", ".pt": "torchscript", ".ts": "torchscript", ".torchscript": "torchscript"}
_DATA = {".onnx": "onnx", ".tflite": "tflite", ".pb": "graph"}
_KINDS = "an IR (.xml), .onnx, .keras, .tflite, TorchScript (.pt), ExportedProgram (.pt2) or a SavedModel folder"


def pack(source: Path, folder: Path, request: Request) -> Facts:
    """Copy a model file or SavedModel folder, and convert it."""
    if not source.exists():
        raise DataError(f"obj={str(source)!r} does not exist.")
    suffix = source.suffix.lower()
    if source.is_dir():
        if not (source / "saved_model.pb").is_file():
            raise ArgumentError(f"obj={str(source)!r} is a folder without a saved_model.pb; expected {_KINDS}.")
        return _converted(source, folder, request, "saved_model")
    if suffix in _REFUSED:
        raise ArgumentError(
            f"obj={str(source)!r} is {_REFUSED[suffix]}, which a store does not take: loading it may run code, or it "
            "is no model. Put the live model (Keras, torch with example=), or save it as .keras, .onnx or IR."
        )
    if suffix == ".keras":
        model = keras_models.read(source, request.trusted, label=f"obj={str(source)!r}")
        return keras_models.pack(model, folder, request, file=source)
    if suffix == ".xml":
        return _converted(source, folder, request, "openvino")
    if suffix in _PROGRAMS:
        (check_no_pickles if suffix == ".pt2" else check_members)(source)
        return _converted(source, folder, request, _PROGRAMS[suffix])
    if suffix in _DATA:
        return _converted(source, folder, request, _DATA[suffix])
    raise ArgumentError(f"obj={str(source)!r}: expected {_KINDS}.")


def _converted(source: Path, folder: Path, request: Request, kind: str) -> Facts:
    from orca.backends.openvino.spec import OpenvinoSpec

    example = None if request.example is None else checked_sample(request.example)
    spec = OpenvinoSpec.make(model_path=os.fspath(source), example=example)
    sample = rows_for(spec) if example is None else example
    native: dict[str, Any] = {"form": "openvino"}
    if kind != "openvino":
        spec = _compared(spec, source, kind, sample)
        target = folder / NATIVE / source.name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        form = "program" if kind in (*_PROGRAMS.values(), "saved_model") else "data"
        native = {"form": form, "file": f"{NATIVE}/{source.name}"}
    return Facts(kind, spec, native, sample, ("torch",) if kind in _PROGRAMS.values() else ())


def _compared(spec: OpenvinoSpec, source: Path, kind: str, sample: Any) -> OpenvinoSpec:
    """Compare a converted program with the original; formats that OpenVINO reads itself need no comparison."""
    from orca.backends.openvino.accelerating import compare

    if sample is None or kind not in (*_PROGRAMS.values(), "saved_model"):
        return spec
    arrays = [np.asarray(leaf) for _, leaf in leaves(sample)]
    run = _run_saved_model if kind == "saved_model" else _run_torch
    output = run(source, spec, arrays)
    if output is not None and len(list(leaves(output))) == len(spec.outputs):
        compare(spec, sample, output, kind)
    return spec


def _run_torch(source: Path, spec: OpenvinoSpec, arrays: list[Any]) -> Any:
    import torch

    from orca.backends.openvino.converting import load_torch

    program = load_torch(str(source))
    program = program.module() if hasattr(program, "module") else program
    typed = [array.astype(port.dtype) for array, port in zip(arrays, spec.inputs, strict=True)]
    with torch.no_grad():
        output = program(*(torch.from_numpy(array) for array in typed))
    return tree_map(lambda tensor: tensor.numpy(), output)


def _run_saved_model(source: Path, spec: OpenvinoSpec, arrays: list[Any]) -> Any:
    try:
        import tensorflow as tf
    except ImportError:
        return None
    call = tf.saved_model.load(str(source)).signatures.get("serving_default")
    if call is None or len(arrays) != len(spec.inputs):
        return None
    names = list(call.structured_input_signature[1])
    by_port = {
        name: array for port, array in zip(spec.inputs, arrays, strict=True) for name in (port.name, *port.names)
    }
    if not all(name in by_port for name in names):
        if len(names) != 1:
            return None
        by_port[names[0]] = arrays[0]
    kinds = call.structured_input_signature[1]
    output = call(**{name: tf.constant(by_port[name].astype(kinds[name].dtype.as_numpy_dtype)) for name in names})
    values = {name: tensor.numpy() for name, tensor in output.items()}
    if len(values) == 1:
        return next(iter(values.values()))
    ports = [next((name for name in (port.name, *port.names) if name in values), None) for port in spec.outputs]
    return None if None in ports else {port.name: values[str(n)] for port, n in zip(spec.outputs, ports, strict=True)}


def open_trusted(path: Path, kind: str) -> Any:
    """Load a program that the caller trusts."""
    if kind == "saved_model":
        import tensorflow as tf

        return tf.saved_model.load(str(path))
    from orca.backends.openvino.converting import load_torch

    return load_torch(str(path))
