"""Parts of a graph that stand alone: variables are constants, and inputs from elsewhere are placeholders."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as v1
from tensorflow.python.framework import convert_to_constants

from orca.backends.graph.pipelines.dumping import VARIABLES
from orca.backends.graph.program import Array, called_functions, node_of
from orca.core.arguments import shown
from orca.errors import ArgumentError, DataError, listed

_WRITES = ("Assign", "ResourceApply", "CountUpTo", "ResourceCountUpTo", "Scatter", "ResourceScatter", "Save", "Restore")
"""Beginnings of the names of operations that change variables or write files."""
_TABLES = ("InitializeTable", "LookupTableImport")
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


@dataclass(frozen=True)
class Part:
    """A graph that runs in any process: tensors to feed, tensors to fetch, and operations to run first."""

    graph: bytes
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    tables: tuple[str, ...] = ()

    @property
    def passes(self) -> tuple[int, ...] | None:
        """The numbers of the feeds that are fetched, if the part computes nothing."""
        if all(name in self.feeds for name in self.fetches):
            return tuple(self.feeds.index(name) for name in self.fetches)
        return None


@dataclass(frozen=True)
class Input:
    """A tensor that comes from another part: its name, type and shape."""

    tensor: str
    dtype: int
    shape: Any = None
    """A TensorShapeProto, or None if nothing is known."""


class Source:
    """The nodes of a dumped graph, by name, with the values of its variables."""

    def __init__(self, graph_def: Any, values: Mapping[str, Array]) -> None:
        self.graph_def = graph_def
        self.values = values
        self.nodes = {node.name: node for node in graph_def.node}

    def node(self, name: str) -> Any:
        """Return a node of an input or a tensor."""
        return self.nodes[node_of(name)]

    def resolve(self, name: str) -> Any:
        """Return the node of a handle, past the identities between."""
        node = self.node(name)
        while node.op in ("Identity", "Enter") and node.input:
            node = self.node(node.input[0])
        return node

    def constant(self, name: str) -> Any:
        """Return the value of a tensor that depends on no record, without shuffles and counters of epochs."""
        while self.node(name).op == "RandomShuffle":
            name = self.node(name).input[0]
        part = self.part([name], (), steps=False)
        graph = v1.Graph()
        with graph.as_default():
            v1.import_graph_def(v1.GraphDef.FromString(part.graph), name="")
            with v1.Session(graph=graph) as session:
                session.run([graph.get_operation_by_name(table) for table in part.tables])
                return session.run(part.fetches[0])

    def part(self, targets: Sequence[str], inputs: Sequence[Input], steps: bool = True) -> Part:
        """Return what some tensors need, with placeholders for inputs.

        Args:
            targets: Tensors to compute.
            inputs: Tensors that are fed.
            steps: Whether the part runs for records; else it is evaluated once, so that shuffles and what has to
                happen before are left out.
        """
        graph_def = self._cut(targets, inputs, steps)
        names = [tensor_name(target) for target in targets]
        self._refuse_python(graph_def)
        if not steps:
            _bypass_shuffles(graph_def)
        self._initialize_missing(graph_def)
        tables = [node.name for node in graph_def.node if node.op.startswith(_TABLES)]
        frozen = self._frozen(graph_def, [*map(node_of, names), *tables, *(node_of(one.tensor) for one in inputs)])
        return Part(
            _serialized(frozen),
            tuple(_fed_name(one.tensor) for one in inputs),
            tuple(_fed_name(name) if _is_fed(name, inputs) else name for name in names),
            tuple(tables),
        )

    def _cut(self, targets: Sequence[str], inputs: Sequence[Input], steps: bool) -> Any:
        """Return the nodes that targets depend on up to inputs, which become placeholders."""
        fed = {one.tensor: _fed_name(one.tensor) for one in inputs}
        graph_def = v1.GraphDef()
        graph_def.versions.CopyFrom(self.graph_def.versions)
        for one in inputs:
            node = graph_def.node.add(name=node_of(fed[one.tensor]), op="Placeholder")
            node.attr["dtype"].type = one.dtype
            if one.shape is None:
                node.attr["shape"].shape.unknown_rank = True
            else:
                node.attr["shape"].shape.CopyFrom(one.shape)
        waiting = [tensor_name(target) for target in targets if tensor_name(target) not in fed]
        stops = {node_of(one.tensor) for one in inputs}
        waiting += self._table_initializers(waiting, stops)
        reached: set[str] = set()
        while waiting:
            name = node_of(waiting.pop())
            if name in reached:
                continue
            reached.add(name)
            node = graph_def.node.add()
            node.CopyFrom(self.nodes[name])
            if "_class" in node.attr:
                del node.attr["_class"]
            node.device = ""
            kept = [source for source in node.input if self._keeps(source, stops, steps)]
            del node.input[:]
            for source in kept:
                full = tensor_name(source)
                node.input.append(fed.get(full, source).removesuffix(":0") if full in fed else source)
                if full not in fed:
                    waiting.append(source)
        graph_def.library.function.extend(called_functions(self.graph_def, graph_def.node))
        for function in graph_def.library.function:
            for node in function.node_def:
                node.device = ""
        return graph_def

    def _keeps(self, source: str, stops: set[str], steps: bool) -> bool:
        """Whether an input of a node is kept: what only has to run before is, unless it writes or is cut off."""
        if not source.startswith("^"):
            return True
        name = node_of(source)
        return steps and name not in stops and not self._leads_to_write(name, stops)

    def _leads_to_write(self, name: str, stops: set[str]) -> bool:
        return any(node.op.startswith(_WRITES) or node.name in stops for node in self.upstream([name]))

    def upstream(self, names: Iterable[str], stops: Iterable[str] = (), control: bool = True) -> list[Any]:
        """Return some nodes and all that they depend on, not beyond the nodes in `stops`, which are included."""
        waiting, reached, stopping = [node_of(name) for name in names], dict[str, Any](), set(stops)
        while waiting:
            name = waiting.pop()
            if name in reached or name not in self.nodes:
                continue
            reached[name] = self.nodes[name]
            if name not in stopping:
                waiting += [node_of(one) for one in self.nodes[name].input if control or not one.startswith("^")]
        return list(reached.values())

    def _table_initializers(self, targets: Sequence[str], stops: set[str]) -> list[str]:
        """Return the operations that fill the lookup tables which targets use."""
        names = {node.name for node in self.upstream(targets, stops)}
        return [
            node.name
            for node in self.graph_def.node
            if node.op.startswith(_TABLES) and node.input and self.resolve(node.input[0]).name in names
        ]

    def _refuse_python(self, graph_def: Any) -> None:
        bodies = [node for function in graph_def.library.function for node in function.node_def]
        for node in [*graph_def.node, *bodies]:
            if node.op in _PYTHON:
                raise ArgumentError(
                    f"The node {node.name!r} calls a Python function (tf.py_func), which is not part of the graph: the "
                    "workers do not have it. Replace it by TensorFlow operations."
                )
            if node.op.startswith(_WRITES):
                raise ArgumentError(
                    f"The node {node.name!r} ({node.op}) writes, but the values of variables are fixed in a pipeline. "
                    "Choose nodes that do not depend on it."
                )

    def _initialize_missing(self, graph_def: Any) -> None:
        """Let the initial value stand for a variable without a value, if it is a list of files."""
        missing = [
            node
            for node in graph_def.node
            if node.op in VARIABLES
            and node.name not in self.values
            and node.attr["dtype"].type == v1.string.as_datatype_enum
        ]
        for variable in missing:
            writes = [
                node
                for node in self.graph_def.node
                if node.op.startswith("Assign") and node_of(node.input[0]) == variable.name
            ]
            if not writes:
                continue
            initial = self.part([writes[0].input[1]], (), steps=False)
            inner = v1.GraphDef.FromString(initial.graph)
            known = {node.name for node in graph_def.node}
            graph_def.node.extend(node for node in inner.node if node.name not in known)
            for node in graph_def.node:
                if node.op in ("ReadVariableOp", "Identity") and node.input and node_of(node.input[0]) == variable.name:
                    node.op = "Identity"
                    node.attr.clear()
                    node.attr["T"].type = v1.string.as_datatype_enum
                    node.input[0] = initial.fetches[0]
            graph_def.node.remove(variable)

    def _frozen(self, graph_def: Any, names: Sequence[str]) -> Any:
        """Replace variables by constants."""
        for node in graph_def.node:
            if node.op in VARIABLES and node.name not in self.values:
                raise DataError(
                    f"model.bin has no value for the variable {node.name!r}."
                    + nearest(node.name, self.values)
                    + (
                        f" It has {len(self.values)}: {listed(sorted(self.values), most=5)}."
                        if self.values
                        else " It is empty."
                    )
                )
            if node.op in VARIABLES:
                self._check_shape(node)
        existing = {node.name for node in graph_def.node}
        outputs = list(dict.fromkeys(name for name in names if name in existing))
        return convert_to_constants.convert_variables_to_constants_from_session_graph(
            _Values(self.values), graph_def, outputs
        )

    def _check_shape(self, node: Any) -> None:
        shape, value = node.attr["shape"].shape, self.values[node.name]
        sizes = [dim.size for dim in shape.dim]
        if shape.unknown_rank or -1 in sizes or tuple(sizes) == value.shape:
            return
        raise DataError(
            f"model.bin has the shape {value.shape} for the variable {node.name!r}; in the graph it has {tuple(sizes)}."
        )


class _Values:
    """The values of variables, in the place of a session that would have them."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._values = values

    def run(self, tensors: Sequence[str]) -> list[Array]:
        return [self._values[name.removesuffix(":0").removesuffix("/Read/ReadVariableOp")] for name in tensors]


def with_constants(graph_def: Any, feeds: Mapping[str, Any]) -> Any:
    """Return a graph in which placeholders are constants."""
    nodes = {node.name: node for node in graph_def.node}
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    values = {}
    for name, value in feeds.items():
        node = nodes.get(node_of(name))
        if node is None or not node.op.startswith("Placeholder"):
            placeholders = [one.name for one in graph_def.node if one.op.startswith("Placeholder")]
            raise ArgumentError(
                f"feed_dict={{{name!r}: …}} is not a placeholder of the graph. Placeholders: "
                f"{listed(placeholders) or 'none'}." + nearest(node_of(name), placeholders)
            )
        try:
            values[node.name] = v1.make_tensor_proto(value, node.attr["dtype"].type)
        except (TypeError, ValueError) as error:
            dtype = v1.as_dtype(node.attr["dtype"].type).name
            raise ArgumentError(f"feed_dict[{name!r}]={shown(value)}: expected {dtype} ({error}).") from error
    for node in copy.node:
        if node.name in values:
            node.op = "Const"
            del node.input[:]
            node.attr.clear()
            node.attr["dtype"].type = values[node.name].dtype
            node.attr["value"].tensor.CopyFrom(values[node.name])
    return copy


def tensor_name(name: str) -> str:
    """Return the full name of a tensor.

    >>> tensor_name("dense/BiasAdd"), tensor_name("split:1")
    ('dense/BiasAdd:0', 'split:1')
    """
    return name if name.startswith("^") or ":" in name else f"{name}:0"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the names closest to one that does not exist, as a sentence.

    >>> nearest("logit", ["logits", "labels", "images"])
    ' The nearest names are: logits, labels.'
    """
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" The nearest names are: {', '.join(close)}." if close else ""


def _fed_name(tensor: str) -> str:
    """Return the name of the placeholder that takes the place of a tensor."""
    return f"orca_input/{tensor.replace(':', '/')}:0"


def _is_fed(name: str, inputs: Sequence[Input]) -> bool:
    return any(one.tensor == name for one in inputs)


def _bypass_shuffles(graph_def: Any) -> None:
    shuffles = {node.name: node.input[0] for node in graph_def.node if node.op == "RandomShuffle"}
    for node in graph_def.node:
        for number, source in enumerate(node.input):
            if node_of(source) in shuffles:
                node.input[number] = shuffles[node_of(source)]


def _serialized(graph_def: Any) -> bytes:
    try:
        return bytes(graph_def.SerializeToString())
    except Exception as error:
        raise DataError(
            f"The graph with its variables is larger than 2 GB, which TensorFlow cannot run: {error}"
        ) from error
