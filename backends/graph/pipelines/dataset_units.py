"""The tf.data pipeline of one unit of work: some of the files, part of a file, or some of the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph.pipelines.plan import DatasetSource, Rows
from orca.backends.graph.pipelines.records import Piece
from orca.backends.graph.program import node_of
from orca.shards.adapters.tf_graphs import READERS, Graph


@dataclass(frozen=True)
class Reader:
    """The operation that reads files, and the nodes around it: of the graph, or of a function."""

    node: Any
    nodes: Any
    scope: str
    suffix: str


def narrowed(source: DatasetSource, part: Sequence[Piece] | Rows) -> Iterator[bytes]:
    """Yield the graphs that yield the rows of a unit: one for its whole files, one for each part of a file."""
    if isinstance(part, Rows):
        yield _rows_of(source, part)
        return
    whole: list[Piece] = []
    for piece in part:
        if piece.is_whole:
            whole.append(piece)
            continue
        if whole:
            yield _files_of(source, whole)
            whole = []
        if graph := _piece_of(source, piece):
            yield graph
    if whole:
        yield _files_of(source, whole)


def _rows_of(source: DatasetSource, rows: Rows) -> bytes:
    graph = Graph(source.graph)
    if source.mode == "elements":
        result = result_node(graph)
        end = next(node for node in graph.proto.node if node.name == node_of(result.input[0]))
        result.input[0] = _follow(graph.proto.node, end, "ShardDataset", (rows.high, rows.low), "")
    else:
        root = first_datasets(graph)[0]
        skip = _insert(graph.proto.node, root, "SkipDataset", rows.low, "")
        node = next(one for one in graph.proto.node if one.name == skip)
        _insert(graph.proto.node, node, "TakeDataset", rows.high - rows.low, "")
    return bytes(graph.proto.SerializeToString())


def _files_of(source: DatasetSource, pieces: Sequence[Piece]) -> bytes:
    graph = Graph(source.graph)
    _set_files(graph, [piece.path for piece in pieces])
    return bytes(graph.proto.SerializeToString())


def _piece_of(source: DatasetSource, piece: Piece) -> bytes | None:
    """Return the graph that reads a part of a file; None if no record begins in it."""
    assert source.form is not None, "only files with a known format are cut"
    first, count, begin = source.form.numbers(piece)
    if not count:
        return None
    graph = Graph(source.graph)
    _set_files(graph, [piece.path])
    reader = find_readers(graph)[0]
    node, nodes, suffix = reader.node, reader.nodes, reader.suffix
    if source.form.kind == "tfrecord":
        # The operation wants as many offsets as names, and in a function it may have one name or a list.
        node.op = "TFRecordDatasetV2"
        node.input[0] = const(nodes, "orca_file", np.array([piece.path.encode()], object)) + suffix
        node.input.insert(3, const(nodes, "orca_offset", np.array([begin], np.int64)) + suffix)
    elif source.form.kind == "lines" and first:
        name = _insert(nodes, node, "SkipDataset", first, suffix, _function(graph, reader))
        node = next(one for one in nodes if one.name == name)
    elif source.form.kind == "fixed":
        node.input[1] = const(nodes, "orca_header", np.array(begin, np.int64)) + suffix
        rest = os.path.getsize(piece.path) - begin - count * source.form.record
        node.input[3] = const(nodes, "orca_footer", np.array(rest, np.int64)) + suffix
    _insert(nodes, node, "TakeDataset", count, suffix, _function(graph, reader))
    return bytes(graph.proto.SerializeToString())


def _function(graph: Graph, reader: Reader) -> Any:
    return next((one for one in graph.proto.library.function if one.signature.name == reader.scope), None)


def _set_files(graph: Graph, paths: Sequence[str]) -> None:
    owner = file_nodes(graph, find_readers(graph))[0]
    names = const(graph.proto.node, "orca_files", np.array([path.encode() for path in paths], object))
    if owner.op.startswith(READERS):
        owner.input[0] = names
        return
    files = graph.proto.node.add(name="orca_file_names", op="TensorSliceDataset", input=[names])
    files.attr["Toutput_types"].list.type.append(v1.string.as_datatype_enum)
    files.attr["output_shapes"].list.shape.add()
    owner.input[0] = files.name


def _insert(nodes: Any, node: Any, op: str, value: int, suffix: str, function: Any = None) -> str:
    """Put a dataset between a dataset and all that follow it, and return its name."""
    users = [one for one in nodes if one.name != node.name]
    name = _follow(nodes, node, op, (value,), suffix)
    for user in users:
        for number, source in enumerate(user.input):
            if node_of(source) == node.name and not source.startswith("^"):
                user.input[number] = name + (":handle:0" if suffix else "")
    for key in function.ret if function is not None else ():
        if node_of(function.ret[key]) == node.name:
            function.ret[key] = f"{name}:handle:0"
    return name


def _follow(nodes: Any, node: Any, op: str, values: Sequence[int], suffix: str) -> str:
    """Add a dataset of the elements of another one, and return its name."""
    name = f"orca_{op}_{node.name}".replace("/", "_")
    new = nodes.add(name=name, op=op, input=[node.name + (":handle:0" if suffix else "")])
    for number, value in enumerate(values):
        new.input.append(const(nodes, f"{name}_{number}", np.array(value, np.int64)) + suffix)
    types = "Toutput_types" if "Toutput_types" in node.attr else "output_types"
    if types in node.attr:
        new.attr["output_types"].CopyFrom(node.attr[types])
        new.attr["output_shapes"].CopyFrom(node.attr["output_shapes"])
    else:  # readers of files have no such attributes
        new.attr["output_types"].list.type.append(v1.string.as_datatype_enum)
        new.attr["output_shapes"].list.shape.add()
    return name


def const(nodes: Any, name: str, value: Any) -> str:
    """Add a constant, and return its name."""
    proto = v1.make_tensor_proto(value)
    node = nodes.add(name=name, op="Const")
    node.attr["dtype"].type = proto.dtype
    node.attr["value"].tensor.CopyFrom(proto)
    return name


class Elements:
    """Runs pipelines with elements of some types in a session of its own."""

    def __init__(self, dtypes: Sequence[int], threads: int = 0) -> None:
        import tensorflow as tf

        self._graph = v1.Graph()
        with self._graph.as_default():
            self._serialized = v1.placeholder(v1.string, [])
            spec = tuple(tf.TensorSpec(None, v1.as_dtype(dtype)) for dtype in dtypes)
            variant = v1.raw_ops.DatasetFromGraph(graph_def=self._serialized)
            iterator = v1.data.make_initializable_iterator(tf.data.experimental.from_variant(variant, spec))
            self._initializer, self._next = iterator.initializer, iterator.get_next()
        config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2 if threads else 0)
        self._session = v1.Session(graph=self._graph, config=config)

    def of(self, serialized: bytes) -> Iterator[tuple[Any, ...]]:
        """Yield the elements of a pipeline."""
        self._session.run(self._initializer, {self._serialized: serialized})
        get_next = self._session.make_callable(self._next)
        while True:
            try:
                element = get_next()
            except v1.errors.OutOfRangeError:
                return
            yield element

    def close(self) -> None:
        self._session.close()


def result_node(graph: Graph) -> Any:
    return next(node for node in graph.proto.node if node.op == "_Retval")


def find_readers(graph: Graph) -> list[Reader]:
    return [
        Reader(node, nodes, scope, suffix)
        for scope, nodes, suffix in graph.scopes()
        for node in nodes
        if node.op.startswith(READERS)
    ]


def file_nodes(graph: Graph, readers: Sequence[Reader]) -> list[Any]:
    """Return the nodes at the top of the graph that read files: those that call a function which does, and readers."""
    return [*graph.reading_nodes(), *(reader.node for reader in readers if not reader.scope)]


def ending_at(graph: Graph, name: str) -> bytes:
    """Return the graph of a dataset within a pipeline."""
    copy = type(graph.proto).FromString(graph.proto.SerializeToString())
    next(node for node in copy.node if node.op == "_Retval").input[0] = name
    return bytes(copy.SerializeToString())


def first_datasets(graph: Graph) -> list[Any]:
    """Return the datasets that have no dataset as input."""
    nodes = {node.name: node for node in graph.proto.node}

    def is_dataset(name: str) -> bool:
        node = nodes.get(node_of(name))
        return node is not None and node.op.endswith(("Dataset", "DatasetV2", "DatasetV3"))

    datasets = [node for name, node in nodes.items() if is_dataset(name)]
    used = graph.upstream([result_node(graph).input[0]])
    return [node for node in datasets if node.name in used and not any(map(is_dataset, node.input))]
