"""Exports a torch model to ONNX, OpenVINO, TorchScript or ExportedProgram, with a dynamic number of rows."""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from orca.backends.openvino import telemetry
from orca.backends.torch.tensors import feature
from orca.errors import ArgumentError, DataError, MissingPackageError, suggest
from orca.shards.tree import leaves, row_count, tree_map

_SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torchscript": ".pt", "exported_program": ".pt2"}
_ALIASES = {"torch_export": "exported_program", "exportedprogram": "exported_program"}
_ROWS = 8
# An ONNX file is one protobuf message, which is limited to 2 GB; larger weights go into a separate file.
_ONE_FILE = 1_800_000_000

Write = Callable[[str], object]


def export(model: nn.Module, kind: str, path: str, example: Any) -> str:
    """Export a copy of `model` to a file; the model itself is not changed.

    Args:
        model: The module to export.
        kind: "onnx", "openvino", "torchscript" or "exported_program".
        path: File to write; the suffix of the kind is added if it is missing.
        example: A few rows as for `predict`: an array, a tuple of arrays for several inputs, or a dict. The number of
            rows stays dynamic in the file; the other dimensions are those of the example.

    Returns:
        The path written, with its suffix.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export(nn.Linear(3, 1), "exported_program", f"{folder}/model", np.zeros((2, 3), np.float32))
    ...     Path(path).name, torch.export.load(path).module()(torch.zeros(5, 3)).shape
    ('model.pt2', torch.Size([5, 1]))
    """
    kind = _resolve(kind)
    target = _target(path, _SUFFIXES[kind])
    for package in {"onnx": ("onnx", "onnxscript"), "openvino": ("openvino",)}.get(kind, ()):
        _need(package, kind)
    rows = row_count(example)
    if not rows:
        raise DataError("example= has no rows. Give a few rows as for predict.")
    # Exporters treat a dimension of one as a constant, so there are always at least two rows.
    example = tree_map(lambda array: np.asarray(array)[np.arange(min(max(rows, 2), _ROWS)) % rows], example)
    with _quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            twin = copy.deepcopy(model).to("cpu").eval()
            args, kwargs = _inputs(twin, example)
        except DataError:
            raise
        except Exception as error:
            raise _failure(kind, error, "The model must work with copy.deepcopy.") from error
        try:
            output = twin(*args, **kwargs)
        except Exception as error:
            raise DataError(
                f"example= does not fit the model: {_first_line(error)}. Give a few rows as for predict."
            ) from error
        if not _named_tensors(output):
            raise DataError(
                f"The model returned a {type(output).__name__}; expected tensors, or tuples or dicts of them."
            )
        _write_atomically(kind, target, lambda: _MAKERS[kind](twin, args, kwargs, output))
    return str(target)


def _resolve(kind: str) -> str:
    word = str(kind).lower().replace("-", "_")
    word = _ALIASES.get(word, word)
    if word not in _SUFFIXES:
        raise ArgumentError(
            f"kind={kind!r} is not supported.{suggest(word, _SUFFIXES)} Supported: {', '.join(_SUFFIXES)}."
        )
    return word


def _target(path: str, suffix: str) -> Path:
    text = os.fspath(path)
    if "://" in text or not Path(text).name or text.endswith(("/", os.sep)):
        raise ArgumentError(f"path={text!r} cannot be written to. Give a file name on this machine.")
    target = Path(text if text.lower().endswith(suffix) else text + suffix)
    if target.is_dir():
        raise ArgumentError(f"path={text!r}: {str(target)!r} is a folder. Give a file name.")
    return target


def _need(package: str, extra: str) -> None:
    try:
        __import__(package)
    except ImportError as error:
        raise MissingPackageError(
            f'export(kind="{extra}") needs the package {package}. Run: pip install "orca-estimator[{extra}]"'
        ) from error


def _tensors(example: Any, dtype: torch.dtype) -> Any:
    """Convert the example's arrays to the tensors that the model receives in `predict`."""

    def tensor(array: Any) -> torch.Tensor:
        if array.dtype == object or array.dtype.kind in "USMm":
            raise DataError(f"example= has an array of dtype {array.dtype}. Convert it to numbers first.")
        return feature(np.array(array), dtype)

    return tree_map(tensor, example)


def _inputs(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of the model's forward."""
    dtypes = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    features = _tensors(example, next(dtypes, torch.get_default_dtype()))
    if isinstance(features, list | tuple):
        return tuple(features), {}
    names = list(inspect.signature(model.forward).parameters)
    if isinstance(features, dict) and set(features) <= set(names):
        # In the order of forward, because the file lists the inputs in that order.
        return (), {name: features[name] for name in names if name in features}
    return (features,), {}


class _Flat(nn.Module):  # type: ignore[misc]
    """Wraps a model for formats without dicts: tensors in, a tuple of tensors out."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        positions = itertools.count()
        self.form = tree_map(lambda tensor: next(positions), (args, kwargs))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree_map(lambda position: tensors[position], self.form)
        outputs: list[torch.Tensor] = []
        for _, tensor in _named_tensors(self.model(*args, **kwargs)):
            # OpenVINO identifies values by name and optimizes a clone away, so no tensor may occur twice.
            repeated = any(tensor is other for other in (*tensors, *outputs))
            outputs.append(tensor.view_as(tensor) if repeated else tensor)
        return tuple(outputs)


class _Plain(nn.Module):  # type: ignore[misc]
    """Wraps a model to return named tuples as dicts, as `predict` does; a file cannot refer to their classes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)._asdict()


def _named_tensors(output: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the (name, tensor) pairs of an output."""
    named = output._asdict() if hasattr(output, "_asdict") else output
    return [(name, tensor) for name, tensor in leaves(named) if isinstance(tensor, torch.Tensor)]


def _program(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    shapes = torch.export.ShapesCollection()
    # A named dimension is checked: a model that depends on the number of rows is rejected, not specialized.
    batch = torch.export.Dim("batch")
    for _, tensor in leaves([args, kwargs]):
        shapes[tensor] = {0: batch}
    return torch.export.export(model, args, kwargs, dynamic_shapes=shapes.dynamic_shapes(model, args, kwargs))


def _make_program(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Write:
    program = _program(_Plain(model) if hasattr(output, "_asdict") else model, args, kwargs)
    return lambda path: torch.export.save(program, path)


def _make_onnx(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Write:
    ins, outs = _names(model, args, kwargs, output)
    tensors = tuple(tensor for _, tensor in leaves([args, kwargs]))
    program = _program(_Flat(model, args, kwargs), tensors, {})
    converted = torch.onnx.export(program, input_names=ins, output_names=outs, dynamo=True, verbose=False)
    size = sum(tensor.nbytes for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor))
    return lambda path: converted.save(path, external_data=size > _ONE_FILE)


def _make_openvino(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Write:
    import openvino

    telemetry.off()

    ins, outs = _names(model, args, kwargs, output)
    tensors = tuple(tensor for _, tensor in leaves([args, kwargs]))
    converted = openvino.convert_model(_program(_Flat(model, args, kwargs), tensors, {}))
    for port, name in zip(converted.inputs, ins, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(converted.outputs, outs, strict=True):
        port.get_tensor().set_names({name})
    # The converter makes all dimensions dynamic; only the rows should be.
    converted.reshape({port: [-1, *tensor.shape[1:]] for port, tensor in zip(converted.inputs, tensors, strict=True)})
    # By default the weights would be rounded to float16.
    return lambda path: openvino.save_model(converted, path, compress_to_fp16=False)


def _make_torchscript(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Write:
    errors: list[Exception] = []
    tracer_warnings: list[Any] = []

    def trace() -> Any:
        inputs = {"example_kwarg_inputs": kwargs} if kwargs else {"example_inputs": args}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            traced = torch.jit.trace(model, **inputs, strict=False, check_trace=False)
        tracer_warnings.extend(warning for warning in caught if issubclass(warning.category, torch.jit.TracerWarning))
        return traced

    def attempt(make: Callable[[], Any]) -> Any:
        try:
            candidate = make()
            _compare(candidate, model, args, kwargs)
        except Exception as error:
            errors.append(error)
            return None
        return candidate

    module = attempt(trace)
    if module is None or tracer_warnings:
        # A trace records only the branches that the example took; a script keeps all, but few models can be scripted.
        module = attempt(lambda: torch.jit.script(model)) or module
    if module is None:
        raise errors[0]
    return lambda path: torch.jit.save(module, path)


_MAKERS: dict[str, Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Write]] = {
    "onnx": _make_onnx,
    "openvino": _make_openvino,
    "torchscript": _make_torchscript,
    "exported_program": _make_program,
}


def _compare(exported: Any, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise unless both return the same for one more row than the example has, and for other values."""

    def more(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor[:1]])

    def other(tensor: torch.Tensor) -> torch.Tensor:
        return -more(tensor) if tensor.is_floating_point() else more(tensor)

    for change in (more, other):
        args_, kwargs_ = tree_map(change, (args, kwargs))
        torch.manual_seed(0)  # a model may draw random numbers
        try:
            expected = _named_tensors(model(*args_, **kwargs_))
        except Exception:
            if change is more:
                raise
            continue  # the model itself does not accept such values
        torch.manual_seed(0)
        actual = _named_tensors(exported(*args_, **kwargs_))
        for (_, a), (_, b) in zip(actual, expected, strict=True):
            if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise ValueError("the result depends on the number of rows or on the values of the example")


def _names(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[list[str], list[str]]:
    """Return the names of inputs (forward's arguments or the dict's keys) and outputs (the output's keys)."""
    if len(args) == 1 and isinstance(args[0], dict):
        ins = [name for name, _ in leaves(args[0])]
    else:
        bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        ins = [name.replace(".", "_") for name, _ in leaves(dict(bound))]
    outs = [name for name, _ in _named_tensors(output)]
    outs = [f"output_{name}" if name.isdigit() or name in ins else name or "output" for name in outs]
    return ins, outs


def _write_atomically(kind: str, target: Path, make: Callable[[], Write]) -> None:
    """Write to a temporary folder beside the target and move complete files; a failure leaves nothing behind."""
    try:
        write = make()
    except Exception as error:
        raise _failure(kind, error, _ADVICE[kind]) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    # In a separate folder, files that refer to each other, such as .xml and .bin, have their final names at once.
    draft = Path(tempfile.mkdtemp(prefix=".orca-export-", dir=target.parent))
    try:
        try:
            write(str(draft / target.name))
        except OSError as error:
            raise _failure(kind, error, "Check that the folder is writable and the disk has space.") from error
        except Exception as error:
            raise _failure(kind, error, _ADVICE[kind]) from error
        for file in sorted(draft.iterdir(), key=lambda file: file.name == target.name):
            os.replace(file, target.parent / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


_ANY_ROWS = "The forward pass must work for any number of rows"
_ADVICE = {
    "onnx": f'{_ANY_ROWS} and have no Python branches on tensor values; kind="torchscript" allows more.',
    "openvino": f'{_ANY_ROWS} and have no Python branches on tensor values; kind="torchscript" allows more.',
    "exported_program": f'{_ANY_ROWS} and have no Python branches on tensor values; kind="torchscript" allows more.',
    "torchscript": f"{_ANY_ROWS} and be supported by torch.jit.script or torch.jit.trace.",
}


_NOISE = ("Check '", "Exception from", "FrontEnd API failed", "Model wasn't fully converted", "Summary:")


def _failure(kind: str, error: Exception, advice: str) -> ArgumentError:
    return ArgumentError(f'export(kind="{kind}") failed: {type(error).__name__}: {_first_line(error)}. {advice}')


def _first_line(error: Exception) -> str:
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    # OpenVINO's messages begin with locations in its own code.
    messages = [line for line in lines if not line.startswith(_NOISE)]
    return (messages or lines or [type(error).__name__])[0].rstrip(".:")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings and logs; errors are raised, so nothing is lost."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir", "openvino")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
