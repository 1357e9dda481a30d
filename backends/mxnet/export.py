"""Exports MXNet models to ONNX and OpenVINO."""

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
    """Write the model with a dynamic batch size; return the path written."""
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
    """Return the model as a symbol, its values, and one example array per input."""
    if isinstance(model, mx.mod.Module):
        if not model._arg_params:
            raise NotFittedError("A Symbol has no parameter values to export: call fit or load first.")
        bare = mx.mod.Module(model.symbol, data_names=model._data_names, label_names=model._label_names or None)
        graph = SymbolNet(Graph.of(bare), None)
        return graph.model.without_labels(), {**model._arg_params, **model._aux_params}, graph.inputs(example)
    if not isinstance(model, mx.gluon.HybridBlock):
        raise ArgumentError(
            f"export() needs a HybridBlock, whose graph MXNet can serialize; the model is a "
            f"{type(model).__name__}. Implement hybrid_forward, or use nn.HybridSequential."
        )
    net = GluonNet(model, None, None)
    arrays = net.arguments(example)
    model.hybridize()
    net.run(example)
    names = [f"data{number}" if number or len(arrays) > 1 else "data" for number in range(len(arrays))]
    with tempfile.TemporaryDirectory(prefix="orca-mxnet-") as folder:
        model.export(os.path.join(folder, "model"))
        symbol = mx.sym.load(os.path.join(folder, "model-symbol.json"))
        stored = mx.nd.load(os.path.join(folder, "model-0000.params"))
    values = {name.partition(":")[2]: value for name, value in stored.items()}
    inputs = [name for name in symbol.list_arguments() if name not in values]
    ordered = names if set(names) == set(inputs) else inputs
    return symbol, values, dict(zip(ordered, arrays, strict=True))


def _to_onnx(symbol: Any, values: dict[str, Any], inputs: dict[str, Any], path: str) -> None:
    # The converter expects the inputs in the order of the symbol's arguments.
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
            raise ArgumentError(f"MXNet cannot export this model to ONNX: {str(error).splitlines()[0]}.") from error
        finally:
            logging.disable(logging.NOTSET)
            logging.getLogger().setLevel(level)


@contextlib.contextmanager
def _old_onnx() -> Iterator[None]:
    """Provide onnx.mapping, which MXNet's converter reads and onnx has removed."""
    import onnx

    if hasattr(onnx, "mapping"):
        yield
        return
    mapping: Any = types.ModuleType("onnx.mapping")
    numbers = [number for number in onnx.TensorProto.DataType.values() if number]
    pairs = {}
    for number in numbers:
        with contextlib.suppress(Exception):
            pairs[number] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    mapping.TENSOR_TYPE_TO_NP_TYPE = pairs
    mapping.NP_TYPE_TO_TENSOR_TYPE = {dtype: number for number, dtype in reversed(pairs.items())}
    onnx.mapping = mapping  # type: ignore[attr-defined]
    sys.modules["onnx.mapping"] = mapping
    try:
        yield
    finally:
        del onnx.mapping  # type: ignore[attr-defined]
        sys.modules.pop("onnx.mapping", None)
