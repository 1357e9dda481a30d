"""Graphs without variables: the part that some tensors need, with its variables as constants, for any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1
from tensorflow.python.framework import convert_to_constants

from orca.backends.graph.building import VARIABLES, refuse_python
from orca.backends.graph.program import Array, ancestors, node_of, part_of
from orca.backends.graph.tensors import dtype_name
from orca.errors import ArgumentError

Shape = tuple[int | None, ...] | None
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_TABLES = ("HashTable", "MutableHashTable", "MutableDenseHashTable", "AnonymousHashTable")
RANDOM = ("Random", "Truncated", "ParameterizedTruncated", "Multinomial", "Stateful", "StatelessRandom")
"""Beginnings of the names of random operations."""


@dataclass(frozen=True)
class FrozenInput:
    """A placeholder."""

    name: str
    dtype: str
    shape: Shape
    optional: bool


@dataclass(frozen=True)
class FrozenGraph:
    """A GraphDef with the placeholders that its outputs need, and the operations that fill its tables."""

    graph: bytes = field(repr=False)
    inputs: tuple[FrozenInput, ...]
    outputs: tuple[str, ...]
    """Names of the tensors."""
    shapes: tuple[Shape, ...]
    """Their shapes, as far as the graph knows them."""
    dtypes: tuple[str, ...]
    tables: tuple[str, ...] = ()

    @property
    def is_random(self) -> bool:
        """Whether an operation draws random numbers, so that no two runs are alike."""
        graph_def = v1.GraphDef.FromString(self.graph)
        nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
        return any(node.op.startswith(RANDOM) for node in nodes)


def freeze(fetches: Sequence[Any], session: Any = None) -> FrozenGraph:
    """Return what some tensors of one graph need.

    Args:
        fetches: The tensors.
        session: The session that has the values of variables; without one they are initialized.
    """
    graph = fetches[0].graph
    names = [tensor.name for tensor in fetches]
    whole = graph.as_graph_def(add_shapes=True)
    refuse_python(whole, ancestors(whole, names))
    tables = _table_initializers(graph, whole, names)
    part = part_of(whole, [*names, *tables])
    if any(node.op in VARIABLES for node in part.node):
        with _valued(graph, part, session) as valued:
            part = _constant(valued, part, [node_of(name) for name in (*names, *tables)])
    _prepare(part)
    return FrozenGraph(
        part.SerializeToString(deterministic=True),
        tuple(_input(graph, node) for node in part.node if node.op in _PLACEHOLDERS),
        tuple(names),
        tuple(None if tensor.shape.rank is None else tuple(tensor.shape.as_list()) for tensor in fetches),
        tuple(dtype_name(tensor.dtype) for tensor in fetches),
        tuple(tables),
    )


def _input(graph: Any, node: Any) -> FrozenInput:
    tensor = graph.get_tensor_by_name(f"{node.name}:0")
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return FrozenInput(node.name, dtype_name(tensor.dtype), shape, node.op == "PlaceholderWithDefault")


def _table_initializers(graph: Any, graph_def: Any, names: Sequence[str]) -> list[str]:
    """Return the operations that fill the tables among the ancestors of some tensors."""
    reached = {node.name for node in ancestors(graph_def, names)}
    fills = graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)
    return [one.name for one in fills if any(node_of(source.name) in reached for source in one.inputs)]


@contextmanager
def _valued(graph: Any, part: Any, session: Any) -> Iterator[Any]:
    """Yield a session in which the variables of a part have values."""
    if session is not None:
        yield session
        return
    needed = {node.name for node in part.node}
    variables = [*graph.get_collection("variables"), *graph.get_collection("local_variables")]
    with v1.Session(graph=graph) as own:
        own.run([variable.initializer for variable in variables if variable.op.name in needed])
        yield own


def _constant(session: Any, part: Any, outputs: Sequence[str]) -> Any:
    try:
        return convert_to_constants.convert_variables_to_constants_from_session_graph(session, part, outputs)
    except v1.errors.FailedPreconditionError as error:
        raise ArgumentError(
            f"A variable of the graph has no value in the session: {str(error).splitlines()[0]} Run its initializer, "
            "or let initial_variables=True do it."
        ) from error


def _prepare(part: Any) -> None:
    """Let a graph run anywhere: without devices, and with tables that copies of their operations find by name."""
    for node in part.node:
        node.device = ""
        if node.op.startswith(_TABLES) and not node.attr["shared_name"].s:
            node.attr["shared_name"].s = node.name.encode()
        if "_class" in node.attr:
            del node.attr["_class"]


def freeze_function(function: Callable[..., Any], inputs: Sequence[FrozenInput]) -> tuple[FrozenGraph, Any]:
    """Trace a function of tensors and freeze it; return its graph, and what it returned."""
    import tensorflow as tf

    specs = {
        one.name: tf.TensorSpec(one.shape, tf.dtypes.as_dtype(one.dtype), f"orca_input_{number}")
        for number, one in enumerate(inputs)
    }
    concrete = tf.function(function).get_concrete_function(**specs)
    frozen, graph_def = convert_to_constants.convert_variables_to_constants_v2_as_graph(concrete, False)
    refuse_python(graph_def, list(graph_def.node))
    _prepare(graph_def)
    graph = FrozenGraph(
        graph_def.SerializeToString(deterministic=True),
        tuple(FrozenInput(specs[one.name].name, one.dtype, one.shape, False) for one in inputs),
        tuple(tensor.name for tensor in frozen.outputs),
        tuple(None if one.shape.rank is None else tuple(one.shape.as_list()) for one in frozen.outputs),
        tuple(dtype_name(one.dtype) for one in frozen.outputs),
    )
    return graph, concrete.structured_outputs


# Graphs that run


@dataclass(frozen=True)
class Runnable:
    """A GraphDef with the names of what is fed and fetched."""

    graph: bytes = field(repr=False)
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    tables: tuple[str, ...] = ()

    def start(self, threads: int) -> Callable[..., list[Any]]:
        """Return a function of the fed arrays, in a session of its own; 0 threads are as many as there are cores."""
        graph = v1.Graph()
        with graph.as_default():
            v1.import_graph_def(v1.GraphDef.FromString(self.graph), name="")
        config = v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1 if threads == 1 else 0,
            use_per_session_threads=threads == 1, allow_soft_placement=True,
        )  # fmt: skip
        session = v1.Session(graph=graph, config=config)
        if self.tables:
            session.run(list(self.tables))
        feeds = [graph.get_tensor_by_name(name) for name in self.feeds]
        call = session.make_callable([graph.get_tensor_by_name(name) for name in self.fetches], feeds)
        run: Callable[..., list[Any]] = call
        return run


@dataclass(frozen=True)
class Imported:
    """A frozen graph in a new graph, with placeholders of known shapes."""

    runnable: Runnable
    shapes: tuple[Shape, ...]


def import_with(frozen: FrozenGraph, shapes: Mapping[str, Shape], constants: Mapping[str, Any]) -> Imported:
    """Import a graph with placeholders of these shapes, so that the shapes of its outputs are inferred from them.

    Raises:
        ValueError: If an operation does not accept such shapes.
    """
    graph = v1.Graph()
    with graph.as_default():
        feeds, mapping = feeds_of(frozen, shapes, constants)
        outputs = v1.import_graph_def(
            v1.GraphDef.FromString(frozen.graph), input_map=mapping, return_elements=list(frozen.outputs), name="graph"
        )
        # An output that is fed has to be an operation of its own.
        outputs = [v1.identity(tensor) for tensor in outputs]
        inferred = tuple(None if one.shape.rank is None else tuple(one.shape.as_list()) for one in outputs)
        tables = tuple(f"graph/{name}" for name in frozen.tables)
        runnable = Runnable(
            graph.as_graph_def().SerializeToString(deterministic=True),
            tuple(tensor.name for tensor in feeds),
            tuple(tensor.name for tensor in outputs),
            tables,
        )
    return Imported(runnable, inferred)


def feeds_of(
    frozen: FrozenGraph, shapes: Mapping[str, Shape], constants: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Add placeholders of these shapes and constants to the current graph; return what stands for which input."""
    kinds = {one.name: one.dtype for one in frozen.inputs}
    feeds = [v1.placeholder(v1.as_dtype(kinds[name]), shape) for name, shape in shapes.items()]
    mapping = {f"{name}:0": tensor for name, tensor in zip(shapes, feeds, strict=True)}
    mapping |= {f"{name}:0": v1.constant(value, v1.as_dtype(kinds[name])) for name, value in constants.items()}
    return feeds, mapping


def check_constant(frozen: FrozenGraph, name: str, value: Any) -> Array:
    """Return a value for a placeholder that no column feeds; raise if it does not fit."""
    port = next(one for one in frozen.inputs if one.name == name)
    try:
        array = np.asarray(value, None if port.dtype == "string" else np.dtype(port.dtype))
        fits = port.shape is None or v1.TensorShape(port.shape).is_compatible_with(array.shape)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"feed_dict[{name!r}]={value!r} is no value for a placeholder of {port.dtype}: {error}"
        ) from None
    if not fits:
        raise ArgumentError(
            f"feed_dict[{name!r}] has the shape {array.shape}, but the placeholder has {v1.TensorShape(port.shape)}."
        )
    return array
