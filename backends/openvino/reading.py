"""Reads models of any format that OpenVINO knows, and says in one sentence what is wrong with one that it does not."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openvino

from orca.backends.openvino.ports import Port, guess_layout
from orca.errors import ArgumentError, DataError, OrcaError, suggest

KINDS = ".xml, .onnx, .keras, .pt (TorchScript), .pt2 (ExportedProgram), .tflite, .pb, or a SavedModel folder"
_TORCH = (".pt", ".pth", ".ts", ".torchscript", ".jit")
_cores: dict[int, Any] = {}


def core() -> Any:
    """OpenVINO's Core of this process."""
    # That of a parent is kept as it is: its threads are not here, and to end it would wait for them for ever.
    mine = os.getpid()
    if mine not in _cores:
        _cores[mine] = openvino.Core()
    return _cores[mine]


def read(path: str, shape: Any, example: Any) -> Any:
    """The model in a file or folder, or at an fsspec URL."""
    if "://" in path:
        with _fetched(path) as local:
            return _read(local, path, shape, example)
    return _read(path, path, shape, example)


def _read(path: str, told: str, shape: Any, example: Any) -> Any:
    if not os.path.exists(path):
        raise DataError(f"model_path={told!r} does not exist.")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise DataError(f"model_path={told!r} is a folder without a saved_model.pb; expected {KINDS}.")
    lower = path.lower()
    if lower.endswith((".keras", ".pt2", *_TORCH)):
        from orca.backends.openvino import converting

        load: Callable[[str], Any] = converting.load_keras if lower.endswith(".keras") else converting.load_torch
        with explained(told):
            loaded = load(path)
        return convert(loaded, shape, example, f"model_path={told!r}")
    if lower.endswith(".xml"):
        _check_bin(path, told)
    with explained(told):
        if os.path.isdir(path) or lower.endswith(".pb"):
            return openvino.convert_model(path)
        return core().read_model(path)


def convert(model: Any, shape: Any, example: Any, told: str = "model=") -> Any:
    """A live model of another framework as OpenVINO's."""
    if isinstance(model, openvino.Model):
        return model
    from orca.backends.openvino import converting

    try:
        return converting.convert(model, shape, example)
    except OrcaError as error:
        raise type(error)(f"{told}: {error}") from error


def _check_bin(path: str, told: str) -> None:
    """Raise if an .xml names weights that are not there."""
    weights = Path(path).with_suffix(".bin")
    if weights.exists():
        return
    text = Path(path).read_text(errors="replace")
    if 'type="Const"' in text:
        raise DataError(
            f"{str(Path(told).with_suffix('.bin'))!r} is missing: the weights of model_path={told!r} have to lie "
            "beside it."
        )


@contextmanager
def explained(told: str) -> Iterator[None]:
    """Make what OpenVINO says about a model one sentence that names the file."""
    try:
        yield
    except OrcaError:
        raise
    except Exception as error:
        raise DataError(f"model_path={told!r} cannot be read: {first_line(error)}.{_advice(error)}") from error


def _advice(error: Exception) -> str:
    text = str(error)
    if re.search(r"doesn't contain the operation|No conversion|not supported|unsupported|Unsupported", text):
        return " OpenVINO does not know this operation: export the model without it, or update openvino."
    if re.search(r"[Pp]ars|at offset|tag", text):
        return " The file is damaged or cut off: export or copy it again."
    return f" Expected {KINDS}."


_ASIDES = ("Check '", "Exception from", "FrontEnd API failed", "Model wasn't fully converted", "Summary:", "While ")


def first_line(error: Exception) -> str:
    """What an error of OpenVINO's is about: it begins with where in its own code it noticed."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    telling = [line for line in lines if not line.startswith(_ASIDES)]
    return (telling or lines or [type(error).__name__])[0].rstrip(".:")


@contextmanager
def _fetched(url: str) -> Iterator[str]:
    """A copy of a remote file, and of the weights beside an .xml, on this machine."""
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
    """The model for inputs of the given shape: a tuple, or for several inputs a list or dict of them."""
    if shape is None:
        return model
    by_name = {name: port for port in model.inputs for name in port.get_names()}
    if isinstance(shape, Mapping):
        unknown = [name for name in shape if name not in by_name]
        if unknown:
            raise ArgumentError(
                f"shape= names {unknown[0]!r}, which is no input of the model." + suggest(unknown[0], by_name)
            )
        wanted = {by_name[name]: sides(value) for name, value in shape.items()}
    elif shape and all(isinstance(entry, list | tuple) for entry in shape):
        if len(shape) != len(model.inputs):
            raise ArgumentError(f"shape= has {len(shape)} entries; the model has {len(model.inputs)} inputs.")
        wanted = {port: sides(value) for port, value in zip(model.inputs, shape, strict=True)}
    else:
        wanted = {model.inputs[0]: sides(shape)}
    try:
        model.reshape(wanted)
    except RuntimeError as error:
        raise ArgumentError(f"shape={shape!r} does not fit the model: {first_line(error)}.") from error
    return model


def sides(shape: Any) -> list[int]:
    """A shape for OpenVINO, where -1 is any length."""
    if not isinstance(shape, list | tuple) or not shape:
        raise ArgumentError(f"shape={shape!r}: expected one number per axis, with None for any length.")
    made = [-1 if side is None else side for side in shape]
    if any(isinstance(side, bool) or not isinstance(side, int) or side < -1 or side == 0 for side in made):
        raise ArgumentError(f"shape={shape!r}: expected one number per axis, with None for any length.")
    return made


def typed(model: Any) -> Any:
    """The model with inputs that do not say their type taken for float32."""
    unknown = [port for port in model.inputs if port.get_element_type().is_dynamic()]
    for port in unknown:
        port.get_node().set_element_type(openvino.Type.f32)
    if unknown:
        model.validate_nodes_and_infer_types()
    return model


def prepared(model: Any, config: Mapping[str, Any]) -> Any:
    """The model with the mean and scale of the config as its first steps."""
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
    """The layout that the model itself states for an input, if it does."""
    text = str(port.get_node().get_layout()).strip("[]").replace(",", "")
    return text if text.isalpha() else None


def _shape(port: Any) -> tuple[int | None, ...]:
    return tuple(None if side.is_dynamic else side.get_length() for side in port.partial_shape)


def ports_of(found: Any, what: str) -> list[Port]:
    """Inputs or outputs of a model in its own order."""
    made = []
    for index, port in enumerate(found):
        names = frozenset(port.get_names())
        if port.partial_shape.rank.is_dynamic:
            if what == "input":
                told = repr(min(names)) if names else str(index)
                raise ArgumentError(
                    f"The input {told} of the model has no known number of axes: give shape=, "
                    "such as (None, 3, 224, 224)."
                )
            shape: tuple[int | None, ...] = (None,)
        else:
            shape = _shape(port)
        # A converted model keeps names of its inner values beside the one that its author chose.
        best = sorted(names, key=lambda name: (not name.isidentifier(), name[:1].isdigit(), len(name), name))
        name = best[0] if best else f"{what}_{index}"
        made.append(Port(name, names, port.get_element_type().to_dtype().name, shape, bool(names)))
    return made
