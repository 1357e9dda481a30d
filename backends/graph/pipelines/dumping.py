"""Graphs with the values of their variables as two files: ``model.pb`` and ``model.bin``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph.files import read_values
from orca.backends.graph.program import Array
from orca.errors import ArgumentError, DataError, listed, suggest

GRAPH_FILE, VALUES_FILE = "model.pb", "model.bin"
VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
"""Operations that are variables."""


def dump(folder: str, graph: Any, session: Any, checkpoint: str | None) -> None:
    """Write a graph, and the values of a checkpoint, of a session, or of the initializers."""
    if graph is None:
        graph = v1.get_default_graph() if session is None else session.graph
    _check(graph, session)
    if checkpoint is not None:
        values = _from_checkpoint(graph, checkpoint)
    elif session is not None:
        values = session_values(graph, session)
    else:
        with v1.Session(graph=graph) as fresh:
            fresh.run([variable.initializer for variable in graph.get_collection("variables")])
            values = session_values(graph, fresh)
    os.makedirs(folder, exist_ok=True)
    write(folder, graph.as_graph_def(), values)


def write(folder: str, graph_def: Any, values: Mapping[str, Array]) -> None:
    """Write both files, each in one move, the graph last."""
    from safetensors.numpy import save

    # Safetensors knows numbers only; a variable of strings, such as a list of files, is computed where it is needed.
    numbers = {name: np.array(value, order="C") for name, value in values.items() if value.dtype.kind in "biuf"}
    for name, content in ((VALUES_FILE, save(numbers)), (GRAPH_FILE, graph_def.SerializeToString())):
        path = os.path.join(folder, name)
        with open(f"{path}.part", "wb") as file:
            file.write(content)
        os.replace(f"{path}.part", path)


def read_graph(path: str) -> Any:
    """Return the GraphDef of a file."""
    graph_def = v1.GraphDef()
    try:
        with open(path, "rb") as file:
            graph_def.ParseFromString(file.read())
    except FileNotFoundError:
        raise DataError(f"model_pb={path!r} does not exist.") from None
    except Exception as error:
        raise DataError(f"model_pb={path!r} is not a graph (a GraphDef in binary form): {error}") from error
    if not graph_def.node:
        raise DataError(f"model_pb={path!r} holds no graph: it has no node.")
    return graph_def


def read_variables(path: str) -> dict[str, Array]:
    """Return the values of variables by name."""
    from safetensors.numpy import load_file

    if not os.path.isfile(path):
        raise DataError(f"model_bin={path!r} does not exist.")
    try:
        return dict(load_file(path))
    except Exception as error:
        with open(path, "rb") as file:
            java = file.read(2) == b"\xac\xed"
        reason = (
            "it was written by BigDL with Java's serialization. Dump the model again with orca's dump_model"
            if java
            else f"{type(error).__name__}: {error}"
        )
        raise DataError(f"model_bin={path!r} cannot be read: {reason}.") from error


def _check(graph: Any, session: Any) -> None:
    if not isinstance(graph, v1.Graph):
        raise ArgumentError(f"graph={graph!r}: expected a tf.Graph.")
    if session is not None and getattr(session, "graph", None) is not graph:
        raise ArgumentError("sess= belongs to another graph than graph=. Pass the session in which the graph runs.")
    if not graph.get_operations():
        raise ArgumentError(
            "graph= has no operation: build the model within `with tf.Graph().as_default() as graph:` and pass it."
        )


def _readers(graph: Any) -> dict[str, Any]:
    """Return the tensors that hold the values of variables, by the names of these."""
    tensors: dict[str, Any] = {}
    for operation in graph.get_operations():
        if operation.type in VARIABLES[1:]:
            tensors[operation.name] = operation.outputs[0]
        elif operation.type == "VarHandleOp":
            reads = [one for one in operation.outputs[0].consumers() if one.type == "ReadVariableOp"]
            if reads:
                tensors[operation.name] = reads[0].outputs[0]
    return tensors


def session_values(graph: Any, session: Any) -> dict[str, Array]:
    """Return the values of all variables that have one."""
    tensors = _readers(graph)
    if not tensors:
        return {}
    try:
        values = session.run(tensors)
    except v1.errors.FailedPreconditionError:
        values = {}
        required = {variable.op.name for variable in graph.get_collection("variables")}
        for name, tensor in tensors.items():
            try:
                values[name] = session.run(tensor)
            except v1.errors.FailedPreconditionError:
                # Counters of queues are local variables, which nobody has to initialize here.
                if name in required:
                    raise ArgumentError(
                        f"The variable {name!r} has no value in sess=. Run its initializer, or restore a checkpoint, "
                        "before dump_model."
                    ) from None
    return {name: np.asarray(value) for name, value in values.items()}


def _from_checkpoint(graph: Any, path: str) -> dict[str, Array]:
    """Return the values of a checkpoint for the variables of a graph."""
    try:
        stored = read_values(path)
    except DataError as error:
        raise DataError(f"ckpt_file={path!r} cannot be read: {error}") from error
    names = list(_readers(graph))
    values = {name: stored[name] for name in names if name in stored}
    if names and not values:
        raise DataError(
            f"ckpt_file={path!r} has none of the variables of the graph, such as {names[0]!r}. It has "
            f"{listed(sorted(stored), most=10)}." + suggest(names[0], stored)
        )
    return values
