"""Builds the program of a graph on the driver: a copy of the graph with gradients, an optimizer and the user's names.

The user's graph is only read. Everything is added to the copy.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow.compat.v1 as v1
from tensorflow.core.framework import variable_pb2
from tensorflow.python.framework import meta_graph, tensor_util

from orca.backends.graph import random_ops
from orca.backends.graph.optimizers import Applied, apply
from orca.backends.graph.program import (
    ConstantFeed,
    Port,
    Program,
    Stream,
    VariableNames,
    ancestors,
    called_functions,
    node_of,
    part_of,
)
from orca.errors import ArgumentError, listed

_log = logging.getLogger("orca")

_KEPT = ("variables", "trainable_variables", "local_variables", "metric_variables", "cond_context", "while_context")
"""Collections that travel with the copy; the others may hold anything."""
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_WRITES = ("Assign", "ResourceScatter", "Scatter", "ResourceApply", "Apply")
VARIABLES = ("VarHandleOp", "VariableV2", "Variable", "TemporaryVariable")
_ROOT = "orca"


@dataclass(frozen=True)
class Parts:
    """The user's tensors, all of one graph."""

    graph: Any
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    labels: tuple[Port, ...]
    input_form: Any
    output_form: Any
    label_form: Any
    loss: Any = None
    metrics: Mapping[str, Any] | None = None
    updates: Sequence[Any] = ()
    feeds: tuple[ConstantFeed, ...] = ()


def build(parts: Parts, optimizer: Any) -> Program:
    """Return the program of a graph."""
    copied = _copy(parts.graph)
    plain = copied.as_graph_def()
    with copied.as_default(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorFlow, that dense gradients of embeddings need memory
        applied = _applied(copied, parts, optimizer) if parts.loss is not None and optimizer is not None else None
        program = _named(copied, parts, applied)
        graph_def = copied.as_graph_def()
        targets = _targets(program)
        needed = ancestors(graph_def, targets)
        refuse_python(graph_def, needed)
        _check_fed(program, needed)
        program = _with_variables(program, copied, graph_def, {node.name for node in needed})
    program = replace(program, original=_original(program, plain))
    kept = part_of(graph_def, [*targets, *_variable_nodes(program), *program.tables])
    step = {node.name for node in ancestors(kept, targets)}
    return _with_random_states(program, kept, step)


def _original(program: Program, graph_def: Any) -> bytes:
    """Return the part of the user's graph that the outputs need, with its variables."""
    outputs = [port.tensor for port in program.outputs]
    reached = {node.name for node in ancestors(graph_def, outputs)}
    used = replace(program, model=tuple(one for one in program.model if one.name in reached), optimizer=(), local=())
    fed = [port.tensor for port in program.inputs] + [feed.tensor for feed in program.feeds]
    targets = [*outputs, *fed, *_variable_nodes(used), *program.tables]
    return bytes(part_of(graph_def, targets).SerializeToString(deterministic=True))


def _copy(graph: Any) -> Any:
    """Return a copy of a graph with its variables and control flow contexts."""
    meta = v1.MetaGraphDef()
    meta.graph_def.CopyFrom(graph.as_graph_def(add_shapes=True))
    # Variables describe themselves only while a graph is the default one.
    with graph.as_default():
        for key in _KEPT:
            meta_graph.add_collection_def(meta, key, graph=graph)
    copied = v1.Graph()
    with copied.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    copied.seed = graph.seed
    return copied


def _applied(graph: Any, parts: Parts, optimizer: Any) -> Applied:
    """Add gradients and the optimizer's operations to the copy."""

    def here(element: Any) -> Any:
        return graph.as_graph_element(element.name)

    updates = [here(update) for update in _updates(parts)]
    first = [here(parts.loss), *updates]
    first += [here(metric) for metric in (parts.metrics or {}).values() if not isinstance(metric, list | tuple)]
    step = _global_step(parts.graph)
    return apply(here(parts.loss), optimizer, parts.graph, graph, first, None if step is None else step.op.name)


def _updates(parts: Parts) -> list[Any]:
    """Return the operations that run in each step: those that layers have collected, and the user's own."""
    collected = parts.graph.get_collection(v1.GraphKeys.UPDATE_OPS)
    operations = [update if isinstance(update, v1.Operation) else update.op for update in collected]
    return list(dict.fromkeys([*operations, *parts.updates]))


def _global_step(graph: Any) -> Any:
    steps = graph.get_collection(v1.GraphKeys.GLOBAL_STEP)
    if steps:
        return steps[0]
    named = [variable for variable in graph.get_collection("variables") if variable.op.name == "global_step"]
    return named[0] if named else None


def _named(graph: Any, parts: Parts, applied: Applied | None) -> Program:
    streams, metrics = [], {}
    for name, metric in (parts.metrics or {}).items():
        if isinstance(metric, list | tuple):
            streams.append(Stream(name, metric[0].name, metric[1].name))
        else:
            metrics[name] = metric.name
    tables = [operation.name for operation in parts.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)]
    return Program(
        b"",
        parts.inputs,
        parts.outputs,
        parts.labels,
        parts.input_form,
        parts.output_form,
        parts.label_form,
        loss=None if parts.loss is None else parts.loss.name,
        train=None if applied is None else applied.train,
        gradients=() if applied is None else applied.gradients,
        updates=() if applied is None else tuple(update.name for update in _updates(parts)),
        rates={} if applied is None else applied.rates,
        rate=None if applied is None else _constant(graph, next(iter(applied.rates.values()), None)),
        metrics=metrics,
        streams=tuple(streams),
        optimizer=() if applied is None else tuple(map(names_of, applied.slots)),
        statistics=() if applied is None else _written(graph.as_graph_def(), applied, parts),
        tables=tuple(tables),
        feeds=parts.feeds,
    )


def _constant(graph: Any, rate: str | None) -> str | float | None:
    if rate is None:
        return None
    value = tensor_util.constant_value(graph.get_tensor_by_name(rate))
    return rate if value is None else float(str(value))  # the shortest number, as the user wrote it


def _targets(program: Program) -> list[str]:
    """Return what is fetched from the graph."""
    single = [name for name in (program.loss, program.train) if name is not None]
    streams = [name for stream in program.streams for name in (stream.value, stream.update)]
    ports = [port.tensor for port in (*program.inputs, *program.outputs, *program.labels)]
    feeds = [feed.tensor for feed in program.feeds]
    return [*single, *program.gradients, *program.metrics.values(), *streams, *ports, *feeds, *program.rates.values()]


def refuse_python(graph_def: Any, needed: Sequence[Any]) -> None:
    """Raise if the graph calls Python functions, which exist in this process only."""
    inside = [node for function in called_functions(graph_def, needed) for node in function.node_def]
    found = [f"{node.name} ({node.op})" for node in (*needed, *inside) if node.op in _PYTHON]
    if found:
        raise ArgumentError(
            f"The graph calls Python functions, which the workers do not have: {listed(found, most=5)}. Replace "
            "tf.py_func and tf.numpy_function by TensorFlow operations, or compute this before the data is given to "
            "Orca."
        )


def _check_fed(program: Program, needed: Sequence[Any]) -> None:
    """Raise if a placeholder would be fed by nobody."""
    ports = (*program.inputs, *program.labels)
    fed = {node_of(port.tensor) for port in ports} | {node_of(feed.tensor) for feed in program.feeds}
    unfed = [node.name for node in needed if node.op == "Placeholder" and node.name not in fed]
    if unfed:
        raise ArgumentError(
            f"Nobody feeds the placeholder{'s' if len(unfed) > 1 else ''} {listed(map(repr, unfed), most=5)}. Name "
            "them in inputs= or labels=, or give their values in feed_dict=, such as {is_training: (True, False)}."
        )


def _with_variables(program: Program, graph: Any, graph_def: Any, needed: set[str]) -> Program:
    """Add the variables that the program needs."""
    slots = {variable.name for variable in program.optimizer}
    everything = graph.get_collection("variables")
    model = [names_of(one) for one in everything if one.op.name in needed and one.op.name not in slots]
    local = [*graph.get_collection("local_variables"), *graph.get_collection("metric_variables")]
    local = list({one.op.name: one for one in local}.values())
    names = {one.op.name for one in everything}
    others = [names_of(one) for one in local if one.op.name in needed and one.op.name not in names]
    updates = ancestors(graph_def, [stream.update for stream in program.streams])
    reached = {node.name for node in updates}
    sums = tuple(one.name for one in others if one.name in reached)
    trained = {node_of(variable.name) for variable in model}
    kept = tuple(name for name in program.statistics if name in trained)
    needs = _labels_needed(program, graph_def)
    return replace(
        program, model=tuple(model), local=tuple(others), stream_sums=sums, statistics=kept, predict_needs=needs
    )


def _labels_needed(program: Program, graph_def: Any) -> tuple[str, ...]:
    """Return the labels that the outputs depend on."""
    reached = {node.name for node in ancestors(graph_def, [port.tensor for port in program.outputs])}
    inputs = {node_of(port.tensor) for port in program.inputs}
    return tuple(port.name for port in program.labels if node_of(port.tensor) in reached - inputs)


def names_of(variable: Any) -> VariableNames:
    """Return the names of a variable's parts."""
    proto = variable.to_proto()
    initializer = variable.initializer
    return VariableNames(
        variable.op.name,
        initializer.name,
        initializer.inputs[1].name,
        proto.snapshot_name if ":" in proto.snapshot_name else f"{proto.snapshot_name}:0",
        tuple(variable.shape.as_list()) if variable.shape.is_fully_defined() else None,
        proto.SerializeToString(),
    )


def _variable_nodes(program: Program) -> list[str]:
    variables = (*program.variables, *program.local)
    protos = [variable_pb2.VariableDef.FromString(variable.proto) for variable in variables]
    names = [name for variable in variables for name in (variable.initializer, variable.initial, variable.read)]
    return [*names, *(proto.initial_value_name for proto in protos)]


def _written(graph_def: Any, applied: Applied, parts: Parts) -> tuple[str, ...]:
    """Return the float variables that update operations write and no gradient changes."""
    updates = [update.name for update in _updates(parts)]
    nodes = {node.name: node for node in ancestors(graph_def, updates)}
    written: dict[str, None] = {}
    for node in nodes.values():
        calls = any(value.func.name for value in node.attr.values())
        if node.op.startswith(_WRITES) or calls:
            for source in node.input if calls else node.input[:1]:
                name = _variable_behind(nodes, node_of(source))
                if name is not None and name not in applied.trained:
                    written[name] = None
    floats = {variable.op.name for variable in parts.graph.get_collection("variables") if variable.dtype.is_floating}
    return tuple(name for name in written if name in floats)


def _variable_behind(nodes: Mapping[str, Any], name: str) -> str | None:
    while name in nodes:
        node = nodes[name]
        if node.op in VARIABLES:
            return name
        if node.op not in ("Identity", "Switch", "RefSwitch", "Enter", "RefEnter") or not node.input:
            return None
        name = node_of(node.input[0])
    return None


def _with_random_states(program: Program, graph_def: Any, step: set[str]) -> Program:
    """Make the random operations of steps repeatable, and note those of initializers that have no seed."""
    outside = [node for node in graph_def.node if node.name not in step]
    unseeded = random_ops.unseeded(outside)
    names, others = _rewrite(graph_def, step)
    if others:
        _log.warning(
            "The random operations %s keep a state that cannot be saved: a resumed run draws other numbers there.",
            listed(others, most=5),
        )
    serialized = graph_def.SerializeToString(deterministic=True)
    return replace(program, graph=serialized, unseeded=tuple(unseeded), randoms=tuple(names))


def _rewrite(graph_def: Any, step: Iterable[str]) -> tuple[list[str], list[str]]:
    chosen = set(step)
    # Nodes are rewritten in place within a container of their own, which then replaces the graph's.
    part, rest = type(graph_def)(), type(graph_def)()
    for node in graph_def.node:
        (part if node.name in chosen else rest).node.add().CopyFrom(node)
    stepped = called_functions(graph_def, part.node)
    names, others = random_ops.rewrite(part.node, False, 0, "")
    for function in stepped:
        more, further = random_ops.rewrite(function.node_def, True, len(names), f"{function.signature.name}/")
        names += more
        others += further
    del graph_def.node[:]
    graph_def.node.extend(part.node)
    graph_def.node.extend(rest.node)
    return names, others
