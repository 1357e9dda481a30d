"""Exports a graph with its learned values to SavedModel, ONNX and OpenVINO."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow.compat.v1 as v1
from tensorflow.core.framework import variable_pb2
from tensorflow.python.ops import resource_variable_ops

from orca.backends.base import State
from orca.backends.graph.program import Program, node_of
from orca.backends.graph.runner import Runner, assign
from orca.backends.graph.spec import GraphSpec
from orca.errors import ArgumentError, MissingPackageError, suggest

_NEEDS = {"savedmodel": (), "onnx": ("tf2onnx", "onnx"), "openvino": ("openvino",)}
_ALIASES = {"saved_model": "savedmodel", "tf_saved_model": "savedmodel"}


def export(spec: GraphSpec, state: State | None, seed: int, kind: str, path: str) -> str:
    """Write the graph for other programs, with constant values for what `feed_dict=` feeds in predict."""
    kind = _ALIASES.get(kind, kind)
    if kind not in _NEEDS:
        known = ", ".join(f'"{name}"' for name in _NEEDS)
        raise ArgumentError(f"export({kind!r}): expected one of {known} for graphs." + suggest(kind, _NEEDS))
    if not spec.program.outputs:
        raise ArgumentError("outputs is None; it should not be None in export: give outputs= to from_graph.")
    with _quiet():
        _check_packages(kind)
    if kind == "savedmodel":
        _saved_model(spec, state, seed, path)
        return path
    suffix = ".onnx" if kind == "onnx" else ".xml"
    path = path if path.endswith(suffix) else path + suffix
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="orca-graph-") as folder:
        source = os.path.join(folder, "model")
        _saved_model(spec, state, seed, source)
        try:
            with _quiet():
                (_onnx if kind == "onnx" else _openvino)(source, path, spec.program)
        except Exception as error:
            reason = " ".join(str(error).split())[:300].rstrip(".")
            raise ArgumentError(
                f"export({kind!r}): the graph cannot be converted ({reason}). Use export('savedmodel', path), which "
                "writes any graph."
            ) from error
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the log of the converters, which change the handlers and the level of the root logger as well."""
    root, own = logging.getLogger(), logging.getLogger("tf2onnx")
    handlers, levels = list(root.handlers), (root.level, own.level)
    own.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        own.setLevel(levels[1])


def _check_packages(kind: str) -> None:
    for package in _NEEDS[kind]:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f'export({kind!r}) needs {package}, which is not installed. Run: pip install "orca-estimator[{kind}]"'
            ) from error


def _saved_model(spec: GraphSpec, state: State | None, seed: int, path: str) -> None:
    program = spec.program
    runner = Runner(program, seed, trains=False)
    runner.assign({**spec.values, **((state or {}).get("model") or {})})
    values = runner.values(runner.variables)
    runner.close()
    constants = {node_of(feed.tensor): feed.test for feed in program.feeds}
    graph = v1.Graph()
    with graph.as_default():
        named = {f"{name}:0": v1.constant(value, name=f"{name}_constant") for name, value in constants.items()}
        v1.import_graph_def(v1.GraphDef.FromString(program.original), input_map=named, name="")
        for variable in runner.variables:
            proto = variable_pb2.VariableDef.FromString(variable.proto)
            kind = resource_variable_ops.ResourceVariable if proto.is_resource else v1.Variable
            v1.add_to_collection("variables", kind.from_proto(proto))
        tables = [graph.get_operation_by_name(name) for name in program.tables]
        tensors = [graph.get_tensor_by_name(port.tensor) for port in (*program.inputs, *program.outputs)]
        inputs, outputs = _input_names(program), _output_names(program)
        signature = v1.saved_model.predict_signature_def(
            dict(zip(inputs, tensors, strict=False)), dict(zip(outputs, tensors[len(inputs) :], strict=True))
        )
        with v1.Session(graph=graph) as session:
            assign(session, {one: values[one.name] for one in runner.variables})
            if os.path.isdir(path) and os.path.exists(os.path.join(path, "saved_model.pb")):
                shutil.rmtree(path)
            builder = v1.saved_model.Builder(path)
            builder.add_meta_graph_and_variables(
                session,
                ["serve"],
                {"serving_default": signature},
                main_op=v1.group(*tables) if tables else None,
            )
            builder.save()


def _input_names(program: Program) -> list[str]:
    return [port.name.replace("/", "_") for port in program.inputs]


def _output_names(program: Program) -> list[str]:
    if isinstance(program.output_form, dict):
        return [port.name.replace("/", "_") for port in program.outputs]
    count = len(program.outputs)
    return ["prediction"] if count == 1 else [f"prediction_{number}" for number in range(count)]


def _onnx(source: str, path: str, program: Program) -> None:
    import onnx
    import tf2onnx.convert
    from tf2onnx import tf_loader

    if program.tables:
        raise ArgumentError("tf2onnx does not convert its lookup tables")
    graph_def, *_, renamed = tf_loader.from_saved_model(source, None, None, return_tensors_to_rename=True)
    tensors = {name: tensor for tensor, name in renamed.items()}
    model, _ = tf2onnx.convert.from_graph_def(
        graph_def,
        input_names=[tensors[name] for name in _input_names(program)],
        output_names=[tensors[name] for name in _output_names(program)],
        tensors_to_rename=renamed,
    )
    onnx.checker.check_model(model)  # what it does not know, tf2onnx only logs
    onnx.save(model, path)


def _openvino(source: str, path: str, program: Program) -> None:
    from orca.backends.openvino.conversion import convert

    convert(source, path, _input_names(program), _output_names(program))
