"""Writes a torch model as ONNX, OpenVINO, TorchScript or ExportedProgram, for any number of rows."""

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
# One protobuf message, which an ONNX file is, ends at 2 GB; beyond, the weights need a file of their own.
_ONE_FILE = 1_800_000_000

Write = Callable[[str], object]


def export(model: nn.Module, kind: str, path: str, example: Any) -> str:
    """Write `model` to `path` as `kind` and return the path written, which has the suffix of the kind.

    `example` is a few rows as `predict` takes them: an array, a tuple of arrays for several inputs, or a dict. The
    number of rows stays open in the file, the other dimensions are the example's. The model itself is not touched.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export(nn.Linear(3, 1), "exported_program", f"{folder}/model", np.zeros((2, 3), np.float32))
    ...     Path(path).name, torch.export.load(path).module()(torch.zeros(5, 3)).shape
    ('model.pt2', torch.Size([5, 1]))
    """
    kind = _known(kind)
    target = _target(path, _SUFFIXES[kind])
    for package in {"onnx": ("onnx", "onnxscript"), "openvino": ("openvino",)}.get(kind, ()):
        _need(package, kind)
    rows = row_count(example)
    if not rows:
        raise DataError("example= has no rows. Give a few rows as for predict.")
    # An exporter takes a dimension of one for a constant, so there are always at least two rows.
    example = tree_map(lambda array: np.asarray(array)[np.arange(min(max(rows, 2), _ROWS)) % rows], example)
    with _quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            twin = copy.deepcopy(model).to("cpu").eval()
            args, kwargs = _inputs(twin, example)
        except DataError:
            raise
        except Exception as error:
            raise _failure(kind, error, "The model has to be one that copy.deepcopy can copy.") from error
        try:
            output = twin(*args, **kwargs)
        except Exception as error:
            raise DataError(
                f"example= does not fit the model: {_first_line(error)}. Give a few rows as for predict."
            ) from error
        if not _found(output):
            raise DataError(
                f"The model returned a {type(output).__name__}; expected tensors, or tuples or dicts of them."
            )
        _move_in(kind, target, lambda: _MAKERS[kind](twin, args, kwargs, output))
    return str(target)


def _known(kind: str) -> str:
    word = str(kind).lower().replace("-", "_")
    word = _ALIASES.get(word, word)
    if word not in _SUFFIXES:
        raise ArgumentError(f"kind={kind!r} is not known.{suggest(word, _SUFFIXES)} Known: {', '.join(_SUFFIXES)}.")
    return word


def _target(path: str, suffix: str) -> Path:
    text = os.fspath(path)
    if "://" in text or not Path(text).name or text.endswith(("/", os.sep)):
        raise ArgumentError(f"path={text!r} cannot be written to. Give the name of a file on this machine.")
    target = Path(text if text.lower().endswith(suffix) else text + suffix)
    if target.is_dir():
        raise ArgumentError(f"path={text!r}: {str(target)!r} is a folder. Give the name of a file.")
    return target


def _need(package: str, extra: str) -> None:
    try:
        __import__(package)
    except ImportError as error:
        raise MissingPackageError(
            f'export(kind="{extra}") needs the package {package}. Run: pip install "orca-estimator[{extra}]"'
        ) from error


def _tensors(example: Any, dtype: torch.dtype) -> Any:
    """The example's arrays as the tensors that the model gets in `predict`."""

    def tensor(array: Any) -> torch.Tensor:
        if array.dtype == object or array.dtype.kind in "USMm":
            raise DataError(f"example= has an array of dtype {array.dtype}. Convert it to numbers first.")
        return feature(np.array(array), dtype)

    return tree_map(tensor, example)


def _inputs(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the model's forward: by position and by name."""
    dtypes = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    features = _tensors(example, next(dtypes, torch.get_default_dtype()))
    if isinstance(features, list | tuple):
        return tuple(features), {}
    names = list(inspect.signature(model.forward).parameters)
    if isinstance(features, dict) and set(features) <= set(names):
        # In the order of forward, because that is the order in which the file will list them.
        return (), {name: features[name] for name in names if name in features}
    return (features,), {}


class _Flat(nn.Module):  # type: ignore[misc]
    """A model as formats without dicts want it: tensors in, a tuple of tensors out."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        places = itertools.count()
        self.form = tree_map(lambda tensor: next(places), (args, kwargs))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree_map(lambda place: tensors[place], self.form)
        outputs: list[torch.Tensor] = []
        for _, tensor in _found(self.model(*args, **kwargs)):
            # OpenVINO tells values apart by name and sees through a clone, so none may be there twice.
            twice = any(tensor is other for other in (*tensors, *outputs))
            outputs.append(tensor.view_as(tensor) if twice else tensor)
        return tuple(outputs)


class _Plain(nn.Module):  # type: ignore[misc]
    """A model whose named tuples are dicts, as `predict` gives them too; a file could not name their classes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)._asdict()


def _found(output: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of an output, with their names in it."""
    named = output._asdict() if hasattr(output, "_asdict") else output
    return [(name, tensor) for name, tensor in leaves(named) if isinstance(tensor, torch.Tensor)]


def _program(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    shapes = torch.export.ShapesCollection()
    # A dimension with a name is checked: a model that depends on the number of rows is refused, not specialised.
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
    made = torch.onnx.export(program, input_names=ins, output_names=outs, dynamo=True, verbose=False)
    size = sum(tensor.nbytes for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor))
    return lambda path: made.save(path, external_data=size > _ONE_FILE)


def _make_openvino(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Write:
    import openvino

    telemetry.off()

    ins, outs = _names(model, args, kwargs, output)
    tensors = tuple(tensor for _, tensor in leaves([args, kwargs]))
    made = openvino.convert_model(_program(_Flat(model, args, kwargs), tensors, {}))
    for port, name in zip(made.inputs, ins, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(made.outputs, outs, strict=True):
        port.get_tensor().set_names({name})
    # The converter forgets all dimensions; only the rows are open.
    made.reshape({port: [-1, *tensor.shape[1:]] for port, tensor in zip(made.inputs, tensors, strict=True)})
    # By default the weights would be rounded to half precision.
    return lambda path: openvino.save_model(made, path, compress_to_fp16=False)


def _make_torchscript(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Write:
    errors: list[Exception] = []
    doubts: list[Any] = []

    def trace() -> Any:
        given = {"example_kwarg_inputs": kwargs} if kwargs else {"example_inputs": args}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made = torch.jit.trace(model, **given, strict=False, check_trace=False)
        doubts.extend(warning for warning in said if issubclass(warning.category, torch.jit.TracerWarning))
        return made

    def attempt(make: Callable[[], Any]) -> Any:
        try:
            made = make()
            _compare(made, model, args, kwargs)
        except Exception as error:
            errors.append(error)
            return None
        return made

    made = attempt(trace)
    if made is None or doubts:
        # A trace knows only the way that the example took; a script keeps branches, but few models can be one.
        made = attempt(lambda: torch.jit.script(model)) or made
    if made is None:
        raise errors[0]
    return lambda path: torch.jit.save(made, path)


_MAKERS: dict[str, Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Write]] = {
    "onnx": _make_onnx,
    "openvino": _make_openvino,
    "torchscript": _make_torchscript,
    "exported_program": _make_program,
}


def _compare(made: Any, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise unless both give the same for one row more than the example has, and for other values."""

    def more(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor[:1]])

    def other(tensor: torch.Tensor) -> torch.Tensor:
        return -more(tensor) if tensor.is_floating_point() else more(tensor)

    for change in (more, other):
        args_, kwargs_ = tree_map(change, (args, kwargs))
        torch.manual_seed(0)  # a model may draw random numbers
        try:
            wanted = _found(model(*args_, **kwargs_))
        except Exception:
            if change is more:
                raise
            continue  # the model itself does not take such values
        torch.manual_seed(0)
        given = _found(made(*args_, **kwargs_))
        for (_, one), (_, two) in zip(given, wanted, strict=True):
            if one.shape != two.shape or not torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise ValueError("the result depends on the number of rows or on the values of the example")


def _names(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[list[str], list[str]]:
    """Names for inputs and outputs: forward's arguments or the dict's keys, and the keys of the output."""
    if len(args) == 1 and isinstance(args[0], dict):
        ins = [name for name, _ in leaves(args[0])]
    else:
        bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        ins = [name.replace(".", "_") for name, _ in leaves(dict(bound))]
    outs = [name for name, _ in _found(output)]
    outs = [f"output_{name}" if name.isdigit() or name in ins else name or "output" for name in outs]
    return ins, outs


def _move_in(kind: str, target: Path, make: Callable[[], Write]) -> None:
    """Write to a folder beside the target and move what is complete; whatever fails leaves nothing."""
    try:
        write = make()
    except Exception as error:
        raise _failure(kind, error, _ADVICE[kind]) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    # A folder of its own lets files that name each other, such as .xml and .bin, have their last names at once.
    draft = Path(tempfile.mkdtemp(prefix=".orca-export-", dir=target.parent))
    try:
        try:
            write(str(draft / target.name))
        except OSError as error:
            raise _failure(kind, error, "Check that the folder can be written to and has room.") from error
        except Exception as error:
            raise _failure(kind, error, _ADVICE[kind]) from error
        for file in sorted(draft.iterdir(), key=lambda file: file.name == target.name):
            os.replace(file, target.parent / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


_OPEN_ROWS = "The forward pass must work for any number of rows"
_ADVICE = {
    "onnx": f'{_OPEN_ROWS} and have no Python branches on tensor values; kind="torchscript" allows more.',
    "openvino": f'{_OPEN_ROWS} and have no Python branches on tensor values; kind="torchscript" allows more.',
    "exported_program": f'{_OPEN_ROWS} and have no Python branches on tensor values; kind="torchscript" allows more.',
    "torchscript": f"{_OPEN_ROWS} and be what torch.jit.script or torch.jit.trace can take.",
}


_ASIDES = ("Check '", "Exception from", "FrontEnd API failed", "Model wasn't fully converted", "Summary:")


def _failure(kind: str, error: Exception, advice: str) -> ArgumentError:
    return ArgumentError(f'export(kind="{kind}") failed: {type(error).__name__}: {_first_line(error)}. {advice}')


def _first_line(error: Exception) -> str:
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    # OpenVINO begins with where in its own code it noticed.
    telling = [line for line in lines if not line.startswith(_ASIDES)]
    return (telling or lines or [type(error).__name__])[0].rstrip(".:")


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporters say about themselves; errors are raised, so nothing is lost."""
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
