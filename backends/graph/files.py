"""Graphs and variables in TensorFlow's own files: SavedModel folders, frozen GraphDefs and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph import rates
from orca.backends.graph.program import Array, Program
from orca.errors import ArgumentError, DataError, listed, suggest


@dataclass(frozen=True)
class OpenedGraph:
    """A graph from a file, with the values of its variables and the tensors that the file names."""

    graph: Any
    values: Mapping[str, Array] = field(default_factory=dict)
    ports: Mapping[str, Any] = field(default_factory=dict)


def open_graph(path: str, signature: str | None, inputs: Any, outputs: Any) -> OpenedGraph:
    """Read a SavedModel folder, a frozen GraphDef (.pb) or a checkpoint with its .meta file."""
    path = path.removesuffix(".meta") if path.endswith(".meta") else path
    if os.path.isdir(path) and os.path.exists(os.path.join(path, "saved_model.pb")):
        return _saved_model(path, signature)
    prefix = checkpoint_prefix(path)
    if os.path.exists(f"{prefix}.meta"):
        opened = _checkpoint(prefix)
    elif os.path.isfile(path):
        opened = read_frozen(path)
    else:
        raise DataError(
            f"model_path={path!r} is not a SavedModel folder, a frozen graph (.pb) or a checkpoint with a .meta file."
        )
    if inputs is None or outputs is None:
        names = [operation.name for operation in opened.graph.get_operations()]
        placeholders = [one.name for one in opened.graph.get_operations() if one.type.startswith("Placeholder")]
        raise ArgumentError(
            f"model_path={path!r} does not say which tensors are inputs and outputs: give inputs= and outputs= by "
            f"name. Placeholders: {listed(placeholders, most=10)}; last operations: {listed(names[-5:])}."
        )
    return opened


@contextmanager
def loaded_saved_model(path: str) -> Iterator[tuple[Any, Any]]:
    """Load a SavedModel into a session of its own; yield the session and the MetaGraphDef."""
    graph = v1.Graph()
    with v1.Session(graph=graph) as session:
        try:
            meta = v1.saved_model.load(session, ["serve"], path)
        except Exception as error:
            raise DataError(f"model_path={path!r} cannot be loaded: {error}") from error
        yield session, meta


def _saved_model(path: str, signature: str | None) -> OpenedGraph:
    with loaded_saved_model(path) as (session, meta):
        variables = session.graph.get_collection("variables")
        read = session.run([variable.value() for variable in variables])
        values = {one.op.name: np.array(value) for one, value in zip(variables, read, strict=True)}
    # Reading has added operations, but nothing refers to them.
    names = signature_names(meta, path, signature)
    one = {key: next(iter(ports.values())) if len(ports) == 1 else dict(ports) for key, ports in names.items()}
    return OpenedGraph(session.graph, values, one)


def signature_names(meta: Any, path: str, signature: str | None) -> dict[str, dict[str, str]]:
    """Return the names of the tensors that are the "inputs" and "outputs" of a signature, by their keys."""
    name = signature or "serving_default"
    if name not in meta.signature_def:
        raise ArgumentError(
            f"signature={name!r} is not in {path!r}. Signatures: {listed(meta.signature_def)}."
            + suggest(name, meta.signature_def)
        )
    chosen = meta.signature_def[name]
    return {
        "inputs": {key: info.name for key, info in sorted(chosen.inputs.items())},
        "outputs": {key: info.name for key, info in sorted(chosen.outputs.items())},
    }


def _checkpoint(path: str) -> OpenedGraph:
    graph = v1.Graph()
    with graph.as_default():
        v1.train.import_meta_graph(f"{path}.meta", clear_devices=True)
    return OpenedGraph(graph, read_values(path))


def read_frozen(path: str) -> OpenedGraph:
    graph_def = v1.GraphDef()
    with open(path, "rb") as file:
        try:
            graph_def.ParseFromString(file.read())
        except Exception as error:
            raise DataError(f"model_path={path!r} is not a frozen graph (a GraphDef in binary form).") from error
    graph = v1.Graph()
    with graph.as_default():
        v1.import_graph_def(graph_def, name="")
    return OpenedGraph(graph)


def read_values(path: str) -> dict[str, Array]:
    """Return the values of a checkpoint by variable name; `path` is its prefix, or a folder with checkpoints."""
    try:
        reader = v1.train.load_checkpoint(checkpoint_prefix(path))
    except Exception as error:
        raise DataError(f"path={path!r} is not a checkpoint of TensorFlow: {error}") from error
    return {name: np.array(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}


def checkpoint_prefix(path: str) -> str:
    """Return the prefix of a checkpoint's files; for a folder, that of the newest checkpoint in it."""
    if not os.path.isdir(path) or os.path.exists(f"{path}.index"):
        return path
    inside = os.path.join(path, "")  # as saver.save(session, "folder/") writes it
    newest = None if os.path.exists(f"{inside}.index") else v1.train.latest_checkpoint(path)
    return newest or inside


def read_checkpoint(program: Program, path: str) -> dict[str, Any]:
    """Return the state in a checkpoint of TensorFlow."""
    values = read_values(path)
    missing = [variable.name for variable in program.model if variable.name not in values]
    if missing:
        raise DataError(
            f"path={path!r} has no value for the variable {missing[0]!r}. It has {listed(sorted(values), most=10)}."
            + suggest(missing[0], values)
        )
    state: dict[str, Any] = {"model": {variable.name: values[variable.name] for variable in program.model}}
    slots = [variable.name for variable in program.optimizer]
    if slots and all(name in values for name in slots):
        state["optimizer"] = {name: values[name] for name in slots}
    return state


def write_checkpoint(state: Mapping[str, Any], path: str) -> str:
    """Write a state as a checkpoint of TensorFlow, whose variables have the names of the graph's."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    slots = {name: value for name, value in (state.get("optimizer") or {}).items() if not name.startswith(rates.STATE)}
    values = {**state["model"], **slots}
    graph = v1.Graph()
    with graph.as_default(), v1.Session(graph=graph) as session:
        variables = {}
        for name, value in values.items():
            initial = v1.placeholder(value.dtype, np.shape(value))
            variables[name] = v1.Variable(initial, use_resource=True), initial, value
        session.run(
            [variable.initializer for variable, _, _ in variables.values()],
            {initial: value for _, initial, value in variables.values()},
        )
        saver = v1.train.Saver({name: variable for name, (variable, _, _) in variables.items()})
        return str(saver.save(session, path, write_meta_graph=False))
