"""Writes MXNet models for other programs, ONNX or OpenVINO, so that they can leave."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

from orca.backends.mxnet.nets import GluonNet
from orca.backends.mxnet.symbol_net import SymbolNet
from orca.backends.mxnet.symbols import Graph
from orca.backends.openvino import telemetry
from orca.errors import ArgumentError, MissingPackageError, NotFittedError, suggest

_SUFFIXES = {"onnx": ".onnx", "openvino": ".xml"}


def export(model: Any, kind: str, path: str, example: Any) -> str:
    """Write the model and return the path written; the number of rows stays open."""
    if kind not in _SUFFIXES:
        raise ArgumentError(f'export({kind!r}): expected "onnx" or "openvino" for MXNet.' + suggest(kind, _SUFFIXES))
    for package in ("onnx", *(["openvino"] if kind == "openvino" else [])):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingPackageError(
                f"export({kind!r}) needs {package}, which is not installed. Run: "
                f'pip install "orca-estimator[{package}]"'
            ) from error
    path = path if path.endswith(_SUFFIXES[kind]) else path + _SUFFIXES[kind]
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    symbol, values, inputs = _symbolic(model, example)
    with tempfile.TemporaryDirectory(prefix="orca-mxnet-") as folder:
        target = path if kind == "onnx" else os.path.join(folder, "model.onnx")
        _to_onnx(symbol, values, inputs, target)
        if kind == "openvino":
            import openvino

            telemetry.off()

            openvino.save_model(openvino.convert_model(target), path, compress_to_fp16=False)
    return path


def _symbolic(model: Any, example: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The model as a symbol, its values and arrays that fit its inputs."""
    if isinstance(model, mx.mod.Module):
        if not model._arg_params:
            raise NotFittedError("A Symbol has no values of its own to write: call fit or load first.")
        bare = mx.mod.Module(model.symbol, data_names=model._data_names, label_names=model._label_names or None)
        graph = SymbolNet(Graph.of(bare), None)
        return graph.model.without_labels(), {**model._arg_params, **model._aux_params}, graph.inputs(example)
    if not isinstance(model, mx.gluon.HybridBlock):
        raise ArgumentError(
            f"export needs a HybridBlock, whose computation MXNet can write down; the model is a "
            f"{type(model).__name__}. Write it with hybrid_forward, or as an nn.HybridSequential."
        )
    net = GluonNet(model, None, None)
    given = net.arguments(example)
    model.hybridize()
    net.run(example)
    names = [f"data{number}" if number or len(given) > 1 else "data" for number in range(len(given))]
    with tempfile.TemporaryDirectory(prefix="orca-mxnet-") as folder:
        model.export(os.path.join(folder, "model"))
        symbol = mx.sym.load(os.path.join(folder, "model-symbol.json"))
        read = mx.nd.load(os.path.join(folder, "model-0000.params"))
    values = {name.partition(":")[2]: value for name, value in read.items()}
    found = [name for name in symbol.list_arguments() if name not in values]
    chosen = names if set(names) == set(found) else found
    return symbol, values, dict(zip(chosen, given, strict=True))


def _to_onnx(symbol: Any, values: dict[str, Any], inputs: dict[str, Any], path: str) -> None:
    # In the order in which the converter expects them: that of the symbol's arguments.
    names = [name for name in symbol.list_inputs() if name in inputs]
    shapes = [(1, *np.asarray(inputs[name]).shape[1:]) for name in names]
    with _old_onnx(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from mxnet import onnx as converter

        level = logging.getLogger().level
        logging.disable(logging.WARNING)
        try:
            converter.export_model(
                symbol,
                values,
                shapes,
                [np.float32] * len(shapes),
                path,
                dynamic=True,
                dynamic_input_shapes=[(None, *shape[1:]) for shape in shapes],
            )
        except (AttributeError, KeyError, NotImplementedError, mx.base.MXNetError) as error:
            raise ArgumentError(f"MXNet cannot write this model as ONNX: {str(error).splitlines()[0]}.") from error
        finally:
            logging.disable(logging.NOTSET)
            logging.getLogger().setLevel(level)


@contextlib.contextmanager
def _old_onnx() -> Iterator[None]:
    """The module onnx.mapping, which MXNet's converter reads and onnx has dropped."""
    import onnx

    if hasattr(onnx, "mapping"):
        yield
        return
    made: Any = types.ModuleType("onnx.mapping")
    numbers = [number for number in onnx.TensorProto.DataType.values() if number]
    pairs = {}
    for number in numbers:
        with contextlib.suppress(Exception):
            pairs[number] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    made.TENSOR_TYPE_TO_NP_TYPE = pairs
    made.NP_TYPE_TO_TENSOR_TYPE = {dtype: number for number, dtype in reversed(pairs.items())}
    onnx.mapping = made  # type: ignore[attr-defined]
    sys.modules["onnx.mapping"] = made
    try:
        yield
    finally:
        del onnx.mapping  # type: ignore[attr-defined]
        sys.modules.pop("onnx.mapping", None)
