"""Reads models of any format that OpenVINO supports, with errors of one sentence."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openvino

from orca.backends.openvino.core import core, first_line
from orca.backends.openvino.ports import Port, guess_layout, sides
from orca.core.arguments import wrong
from orca.errors import ArgumentError, DataError, OrcaError, suggest

KINDS = ".xml, .onnx, .keras, .pt (TorchScript), .pt2 (ExportedProgram), .tflite, .pb, or a SavedModel folder"
_TORCH = (".pt", ".pth", ".ts", ".torchscript", ".jit")


def read(path: str, shape: Any, example: Any) -> Any:
    """Read the model in a file or folder, or at an fsspec URL."""
    if "://" in path:
        with _fetched(path) as local:
            return _read(local, path, shape, example)
    return _read(path, path, shape, example)


def _read(path: str, name: str, shape: Any, example: Any) -> Any:
    if not os.path.exists(path):
        raise DataError(f"model_path={name!r} does not exist.")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise DataError(f"model_path={name!r} is a folder without a saved_model.pb; expected {KINDS}.")
    lower = path.lower()
    if lower.endswith((".keras", ".pt2", *_TORCH)):
        from orca.backends.openvino import converting

        load: Callable[[str], Any] = converting.load_keras if lower.endswith(".keras") else converting.load_torch
        with explained(name):
            loaded = load(path)
        return convert(loaded, shape, example, f"model_path={name!r}")
    if lower.endswith(".xml"):
        _check_bin(path, name)
    with explained(name):
        if os.path.isdir(path) or lower.endswith(".pb"):
            return openvino.convert_model(path)
        return core().read_model(path)


def convert(model: Any, shape: Any, example: Any, source: str = "model=") -> Any:
    """Convert a model object of another framework."""
    if isinstance(model, openvino.Model):
        return model
    from orca.backends.openvino import converting

    try:
        return converting.convert(model, shape, example)
    except OrcaError as error:
        raise type(error)(f"{source}: {error}") from error


def _check_bin(path: str, name: str) -> None:
    """Raise if the weights of an .xml are missing."""
    weights = Path(path).with_suffix(".bin")
    if weights.exists():
        return
    text = Path(path).read_text(errors="replace")
    if 'type="Const"' in text:
        raise DataError(
            f"{str(Path(name).with_suffix('.bin'))!r} is missing: the weights of model_path={name!r} must be in the "
            "same folder."
        )


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn OpenVINO's errors into one sentence that names the file."""
    try:
        yield
    except OrcaError:
        raise
    except Exception as error:
        raise DataError(f"model_path={name!r} cannot be read: {first_line(error)}.{_advice(error)}") from error


def _advice(error: Exception) -> str:
    text = str(error)
    if re.search(r"doesn't contain the operation|No conversion|not supported|unsupported|Unsupported", text):
        return " OpenVINO does not support this operation: export the model without it, or update openvino."
    if re.search(r"[Pp]ars|at offset|tag", text):
        return " The file is damaged or truncated: export or copy it again."
    return f" Expected {KINDS}."


@contextmanager
def _fetched(url: str) -> Iterator[str]:
    """Download a remote file, and the weights of an .xml."""
    import fsspec

    files, target = fsspec.core.url_to_fs(url)
    with tempfile.TemporaryDirectory(prefix="orca-openvino-") as folder:
        local = f"{folder}/{target.rstrip('/').rpartition('/')[2]}"
        try:
            files.get(target, local, recursive=bool(files.isdir(target)))
            weights = os.path.splitext(target)[0] + ".bin"
            if target.endswith(".xml") and files.exists(weights):
                files.get(weights, os.path.splitext(local)[0] + ".bin")
        except Exception as error:
            raise DataError(f"model_path={url!r} cannot be fetched: {type(error).__name__}: {error}") from error
        yield local


def reshaped(model: Any, shape: Any) -> Any:
    """Reshape the model's inputs: a tuple, or for several inputs a list or dict of tuples."""
    if shape is None:
        return model
    by_name = {name: port for port in model.inputs for name in port.get_names()}
    if not isinstance(shape, Mapping | list | tuple) or not shape:
        raise wrong("shape", shape, "a tuple with one number per axis, or a list or dict of them")
    if isinstance(shape, Mapping):
        unknown = [name for name in shape if name not in by_name]
        if unknown:
            raise ArgumentError(
                f"shape= names {unknown[0]!r}, which is not an input of the model." + suggest(unknown[0], by_name)
            )
        shapes = {by_name[name]: sides(value) for name, value in shape.items()}
    elif all(isinstance(entry, list | tuple) for entry in shape):
        if len(shape) != len(model.inputs):
            raise ArgumentError(f"shape= has {len(shape)} entries; the model has {len(model.inputs)} inputs.")
        shapes = {port: sides(value) for port, value in zip(model.inputs, shape, strict=True)}
    else:
        shapes = {model.inputs[0]: sides(shape)}
    try:
        model.reshape(shapes)
    except RuntimeError as error:
        raise ArgumentError(f"shape={shape!r} does not fit the model: {first_line(error)}.") from error
    return model


def typed(model: Any) -> Any:
    """Set inputs without a type to float32."""
    unknown = [port for port in model.inputs if port.get_element_type().is_dynamic()]
    for port in unknown:
        port.get_node().set_element_type(openvino.Type.f32)
    if unknown:
        model.validate_nodes_and_infer_types()
    return model


def prepared(model: Any, config: Mapping[str, Any]) -> Any:
    """Add the mean and scale of the config to the model as its first steps."""
    mean, scale = config.get("mean"), config.get("scale")
    if mean is None and scale is None:
        return model
    from openvino.preprocess import PrePostProcessor

    steps = PrePostProcessor(model)
    for index, port in enumerate(model.inputs):
        if not port.get_element_type().is_real():
            continue
        entry = steps.input(index)
        own = layout_of(port) or guess_layout(_shape(port))
        if own:
            entry.model().set_layout(openvino.Layout(own))
            entry.tensor().set_layout(openvino.Layout(own))
        for name, value in (("mean", mean), ("scale", scale)):
            if value is not None:
                numbers = [float(one) for one in value] if isinstance(value, list | tuple) else [float(value)]
                getattr(entry.preprocess(), name)(numbers[0] if len(numbers) == 1 else numbers)
    try:
        return steps.build()
    except RuntimeError as error:
        raise ArgumentError(f"mean and scale of config do not fit the model: {first_line(error)}.") from error


def layout_of(port: Any) -> str | None:
    """Return the layout that the model declares for an input, if any."""
    text = str(port.get_node().get_layout()).strip("[]").replace(",", "")
    return text if text.isalpha() else None


def _shape(port: Any) -> tuple[int | None, ...]:
    return tuple(None if side.is_dynamic else side.get_length() for side in port.partial_shape)


def ports_of(model_ports: Any, what: str) -> list[Port]:
    """Describe the inputs or outputs of a model, in its own order."""
    ports = []
    for index, port in enumerate(model_ports):
        names = frozenset(port.get_names())
        if port.partial_shape.rank.is_dynamic:
            if what == "input":
                label = repr(min(names)) if names else str(index)
                raise ArgumentError(
                    f"The input {label} of the model has an unknown number of axes: pass shape=, "
                    "such as (None, 3, 224, 224)."
                )
            shape: tuple[int | None, ...] = (None,)
        else:
            shape = _shape(port)
        # A converted model has names of internal tensors next to the one that its author chose.
        best = sorted(names, key=lambda name: (not name.isidentifier(), name[:1].isdigit(), len(name), name))
        name = best[0] if best else f"{what}_{index}"
        ports.append(Port(name, names, port.get_element_type().to_dtype().name, shape, bool(names)))
    return ports
