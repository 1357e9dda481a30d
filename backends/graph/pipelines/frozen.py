"""The graph of an estimator with fixed values, from its inputs to its outputs."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow.compat.v1 as v1

from orca.backends.graph.pipelines.dumping import session_values
from orca.backends.graph.pipelines.freezing import Input, Part, Source, with_constants
from orca.backends.graph.pipelines.running import PartSession
from orca.backends.graph.spec import GraphSpec
from orca.core.machine import granted_threads


def frozen_part(spec: GraphSpec, session: Any) -> Part:
    """Return the part of a graph that computes the outputs, with the values that variables have in a session."""
    program, graph = spec.program, session.graph
    feeds = {feed.tensor: feed.test for feed in program.feeds}
    source = Source(with_constants(graph.as_graph_def(), feeds), session_values(graph, session))
    inputs = [_input(graph.get_tensor_by_name(port.tensor)) for port in program.inputs]
    return source.part([port.tensor for port in program.outputs], inputs)


def _input(tensor: Any) -> Input:
    return Input(tensor.name, tensor.dtype.base_dtype.as_datatype_enum, tensor.shape.as_proto())


@functools.lru_cache(maxsize=8)
def opened(part: Part) -> PartSession:
    """Return a session for a part; a process opens one for each."""
    return PartSession(part, granted_threads())


def dtypes(part: Part) -> list[Any]:
    """Return the numpy dtypes of the tensors that are fed."""
    nodes = {node.name: node for node in v1.GraphDef.FromString(part.graph).node}
    return [v1.as_dtype(nodes[name.removesuffix(":0")].attr["dtype"].type).as_numpy_dtype for name in part.feeds]
