"""Exports a graph with its learned values to SavedModel, ONNX and OpenVINO."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

import tensorflow.compat.v1 as v1
from tensorflow.core.framework import variable_pb2
from tensorflow.python.ops import resource_variable_ops

from orca.backends.base import State
from orca.backends.graph.program import Program, node_of
from orca.backends.graph.runner import Runner, assign
from orca.backends.graph.spec import GraphSpec
from orca.errors import ArgumentError, MissingPackageError, suggest

_KINDS = ("savedmodel", "onnx", "openvino")
_ALIASES = {"saved_model": "savedmodel", "tf_saved_model": "savedmodel"}


def export(spec: GraphSpec, state: State | None, seed: int, kind: str, path: str) -> str:
    """Write the graph for other programs, with constant values for what `feed_dict=` feeds in predict."""
    kind = _ALIASES.get(kind, kind)
    if kind not in _KINDS:
        known = ", ".join(f'"{name}"' for name in _KINDS)
        raise ArgumentError(f"export({kind!r}): expected one of {known} for graphs." + suggest(kind, _KINDS))
    if not spec.program.outputs:
        raise ArgumentError("outputs is None; it should not be None in export: give outputs= to from_graph.")
    if kind == "savedmodel":
        _saved_model(spec, state, seed, path)
        return path
    suffix = ".onnx" if kind == "onnx" else ".xml"
    path = path if path.endswith(suffix) else path + suffix
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="orca-graph-") as folder:
        source = os.path.join(folder, "model")
        _saved_model(spec, state, seed, source)
        (_onnx if kind == "onnx" else _openvino)(source, path)
    return path


def _saved_model(spec: GraphSpec, state: State | None, seed: int, path: str) -> None:
    program = spec.program
    runner = Runner(program, seed, trains=False)
    runner.assign({**spec.values, **((state or {}).get("model") or {})})
    values = runner.values(runner.variables)
    constants = {node_of(feed.tensor): feed.test for feed in program.feeds}
    graph = v1.Graph()
    with graph.as_default():
        named = {f"{name}:0": v1.constant(value, name=f"{name}_constant") for name, value in constants.items()}
        v1.import_graph_def(runner.graph.as_graph_def(), input_map=named, name="")
        runner.close()
        for variable in runner.variables:
            proto = variable_pb2.VariableDef.FromString(variable.proto)
            kind = resource_variable_ops.ResourceVariable if proto.is_resource else v1.Variable
            v1.add_to_collection("variables", kind.from_proto(proto))
        tables = [graph.get_operation_by_name(name) for name in program.tables]
        signature = v1.saved_model.predict_signature_def(_infos(graph, program.inputs), _outputs(graph, program))
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


def _infos(graph: Any, ports: Any) -> dict[str, Any]:
    return {port.name.replace("/", "_"): graph.get_tensor_by_name(port.tensor) for port in ports}


def _outputs(graph: Any, program: Program) -> dict[str, Any]:
    names = [port.name.replace("/", "_") for port in program.outputs]
    if not isinstance(program.output_form, dict):
        count = len(program.outputs)
        names = ["prediction"] if count == 1 else [f"prediction_{number}" for number in range(count)]
    return {name: graph.get_tensor_by_name(port.tensor) for name, port in zip(names, program.outputs, strict=True)}


def _onnx(source: str, path: str) -> None:
    try:
        import tf2onnx.convert
    except ImportError as error:
        raise MissingPackageError(
            'export("onnx") needs tf2onnx, which is not installed. Run: pip install "orca-estimator[onnx]"'
        ) from error
    from tf2onnx import tf_loader

    graph_def, inputs, outputs, *_ = tf_loader.from_saved_model(source, None, None, return_tensors_to_rename=True)
    tf2onnx.convert.from_graph_def(graph_def, input_names=inputs, output_names=outputs, output_path=path)


def _openvino(source: str, path: str) -> None:
    try:
        import openvino
    except ImportError as error:
        raise MissingPackageError(
            'export("openvino") needs openvino, which is not installed. Run: pip install "orca-estimator[openvino]"'
        ) from error
    from orca.backends.openvino import telemetry

    telemetry.off()
    openvino.save_model(openvino.convert_model(source), path, compress_to_fp16=False)
