"""Finds where records enter a graph, and follows them through its queues to the nodes that users ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1
from tensorflow.python.framework import op_def_registry

from orca.backends.graph.pipelines import datasets
from orca.backends.graph.pipelines.freezing import Input, Part, Source, nearest, tensor_name
from orca.backends.graph.pipelines.plan import Branch, ReaderSource, Step, ValueSource
from orca.backends.graph.pipelines.records import Format
from orca.backends.graph.program import node_of
from orca.errors import ArgumentError, DataError, listed

_STRING = v1.string.as_datatype_enum
_DEQUEUE = ("QueueDequeue", "QueueDequeueMany", "QueueDequeueUpTo")
_READ = ("ReaderRead", "ReaderReadUpTo")
_QUEUES = ("FIFOQueue", "RandomShuffleQueue")
_READERS = ("TFRecordReader", "FixedLengthRecordReader", "TextLineReader", "WholeFileReader")
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2")


def base_op(node: Any) -> str:
    """Return an operation without its version."""
    return str(node.op).removesuffix("V2")


def is_entry(node: Any) -> bool:
    """Whether records enter the graph, or leave a queue, at a node."""
    return base_op(node) in (*_DEQUEUE, *_READ) or node.op in datasets.ENTRIES


def check_targets(source: Source, names: Sequence[str]) -> None:
    """Raise unless all names are tensors of the graph."""
    for name in names:
        node = source.nodes.get(node_of(name))
        if node is None:
            raise ArgumentError(
                f"nodes={name!r} is not a node of the graph, which has {len(source.nodes)}."
                + (nearest(node_of(name), source.nodes) or f" The last ones are: {listed(list(source.nodes)[-5:])}.")
            )
        definition = op_def_registry.get(node.op)
        if definition is not None and not definition.output_arg:
            raise ArgumentError(f"nodes={name!r} is an operation ({node.op}) without a result. Choose a tensor.")


def trace(source: Source, targets: Sequence[str], files: Any) -> tuple[Part, list[Branch]]:
    """Return the part of a graph that computes targets from what enters it, and where that comes from.

    Args:
        source: The graph.
        targets: The tensors to compute.
        files: The user's own files, which stand for a placeholder of file names in a tf.data pipeline.
    """
    entry, picks = _entry(source, targets)
    branches = _branches(source, entry, picks, files)
    inputs = _inputs(source, entry, picks, branches[0].batched)
    return source.part(targets, inputs), branches


def _entry(source: Source, targets: Sequence[str]) -> tuple[Any, tuple[int, ...]]:
    """Return the one node at which records reach targets, and which of its outputs are used."""
    entries = {name for name, node in source.nodes.items() if is_entry(node)}
    nodes = source.upstream(targets, entries, control=False)
    reached = [node for node in nodes if node.name in entries]
    placeholders = [node.name for node in nodes if node.op in _PLACEHOLDERS]
    if placeholders:
        raise ArgumentError(
            f"nodes={_plain(targets[0])!r} depends on the placeholder {placeholders[0]!r}, for which there is no data. "
            f"Give it a value with feed_dict={{{placeholders[0]!r}: …}}, or choose nodes that depend only on what the "
            "graph reads."
        )
    if not reached:
        readers = [node.name for node in source.graph_def.node if is_entry(node)]
        hint = f" It reads at {listed(readers, most=5)}." if readers else " The graph reads no files."
        raise ArgumentError(
            f"nodes={_plain(targets[0])!r} depends on nothing that the graph reads: no list of files found.{hint}"
        )
    if len(reached) > 1:
        raise ArgumentError(
            f"nodes={_plain(targets[0])!r} depends on records that enter the graph in several places, at "
            f"{listed(node.name for node in reached)}: they cannot be matched. Choose nodes behind one of them."
        )
    entry = reached[0]
    used = {tensor_name(target) for target in targets}
    used |= {tensor_name(one) for node in nodes if node is not entry for one in node.input if not one.startswith("^")}
    picks = sorted(int(name.rpartition(":")[2]) for name in used if node_of(name) == entry.name)
    return entry, tuple(picks)


def _plain(name: str) -> str:
    return name.removesuffix(":0")


def _inputs(source: Source, entry: Any, picks: Sequence[int], batched: bool) -> list[Input]:
    """Return the outputs of an entry as inputs of the part behind it."""
    operation = base_op(entry)
    dtypes: list[int] = [_STRING, _STRING]
    shapes: list[Any] = []
    if entry.op in datasets.ENTRIES:
        dtypes = list(entry.attr["output_types"].list.type)
        shapes = [_shape(shape, rows=0, drop=batched) for shape in entry.attr["output_shapes"].list.shape]
    elif operation in _DEQUEUE:
        queue = source.resolve(entry.input[0])
        dtypes = list(entry.attr["component_types"].list.type)
        many = operation != "QueueDequeue"
        # An element that is a batch may be shorter than the queue says.
        shapes = [_shape(one, rows=many, drop=batched and not many) for one in queue.attr["shapes"].list.shape]
    elif operation == "ReaderReadUpTo":
        shapes = [_shape(v1.TensorShape([]).as_proto(), rows=1, drop=False)] * 2
    else:
        shapes = [v1.TensorShape([]).as_proto()] * 2
    shapes = shapes or [None] * len(dtypes)
    return [Input(f"{entry.name}:{number}", dtypes[number], shapes[number]) for number in picks]


def _shape(shape: Any, rows: bool | int, drop: bool) -> Any:
    """Return a shape with an axis of any number of rows in front, or in place of its first axis."""
    if shape.unknown_rank:
        return None
    sizes: list[int | None] = [None if dim.size < 0 else dim.size for dim in shape.dim]
    if rows:
        sizes = [None, *sizes]
    elif drop and sizes:
        sizes[0] = None
    return v1.TensorShape(sizes).as_proto()


def _branches(source: Source, entry: Any, picks: tuple[int, ...], files: Any) -> list[Branch]:
    """Return the ways on which records reach an entry: one for each list of files."""
    operation = base_op(entry)
    if entry.op in datasets.ENTRIES:
        return [datasets.branch(source, entry, picks, files)]
    if operation in _READ:
        return [_reading(source, entry, picks)]
    queue = source.resolve(entry.input[0])
    if base_op(queue) not in _QUEUES:
        raise ArgumentError(
            f"The node {queue.name!r} is a {queue.op}, which is not supported in a pipeline. Supported are "
            f"{listed(_QUEUES)}."
        )
    rows = 0 if operation == "QueueDequeue" else int(source.constant(entry.input[1]))
    branches: dict[tuple[str, ...], Branch] = {}
    for enqueue in _enqueues(source, queue):
        components = [tensor_name(enqueue.input[1 + number]) for number in picks]
        splits = base_op(enqueue) == "QueueEnqueueMany"
        for branch in _arriving(source, components, splits, rows, files):
            # Several readers that share a queue of files are one: any of them may read any file.
            branches.setdefault((branch.origin,), branch)
    return list(branches.values())


def _arriving(source: Source, components: list[str], splits: bool, rows: int, files: Any) -> list[Branch]:
    """Return the branches that end in a queue with these components."""
    if not _depends_on_entry(source, components):
        columns = tuple(np.asarray(source.constant(name)) for name in components)
        if not splits:
            columns = tuple(column[None] for column in columns)
        names = columns[0] if len(columns) == 1 and columns[0].dtype == object and columns[0].ndim == 1 else None
        return [
            Branch(
                ValueSource(columns),
                (Step(_identity(len(columns)), False, rows),),
                rows > 0,
                origin=node_of(components[0]),
                takes_files=names is not None,
            )
        ]
    part, branches = trace(source, components, files)
    step = Step(part, splits, rows)
    return [
        replace(branch, steps=(*branch.steps, step), batched=rows > 0 or (branch.batched and not splits))
        for branch in branches
    ]


def _identity(count: int) -> Part:
    names = tuple(str(number) for number in range(count))
    return Part(b"", names, names)


def _depends_on_entry(source: Source, names: Sequence[str]) -> bool:
    return any(is_entry(node) for node in source.upstream(names, control=False))


def _enqueues(source: Source, queue: Any) -> list[Any]:
    """Return the operations that fill a queue."""
    nodes = [
        node
        for node in source.graph_def.node
        if base_op(node) in ("QueueEnqueue", "QueueEnqueueMany") and source.resolve(node.input[0]).name == queue.name
    ]
    if not nodes:
        raise ArgumentError(f"No list of files found: nothing in the graph fills the queue {queue.name!r}.")
    return nodes


def _reading(source: Source, entry: Any, picks: tuple[int, ...]) -> Branch:
    """Return the branch of a reader: its files, and how it cuts them into records."""
    reader = source.resolve(entry.input[0])
    if base_op(reader) not in _READERS:
        raise ArgumentError(
            f"The node {reader.name!r} is a {reader.op}, which is not supported in a pipeline. Supported are "
            f"{listed(_READERS)}, and tf.data."
        )
    queue = source.resolve(entry.input[1])
    enqueue = _enqueues(source, queue)[0]
    name = tensor_name(enqueue.input[1])
    if _depends_on_entry(source, [name]):
        raise ArgumentError(
            f"No list of files found: the names in the queue {queue.name!r} come from {node_of(name)!r}, which reads "
            "them from another queue."
        )
    at_once = int(source.constant(entry.input[2])) if base_op(entry) == "ReaderReadUpTo" else 0
    files = _file_names(source, name)
    return Branch(
        ReaderSource(_format(reader), picks, at_once), (), at_once > 0, files, origin=queue.name, takes_files=True
    )


def _file_names(source: Source, name: str) -> tuple[str, ...] | None:
    """Return the files that a graph names; None if they are in a placeholder."""
    if any(node.op in _PLACEHOLDERS for node in source.upstream([name], control=False)):
        return None
    try:
        names = np.asarray(source.constant(name)).reshape(-1)
    except v1.errors.OpError as error:
        raise DataError(f"The list of files cannot be computed from {node_of(name)!r}: {error.message}") from error
    return tuple(one.decode() for one in names)


def _format(reader: Any) -> Format:
    operation = base_op(reader)
    if operation == "TFRecordReader":
        return Format("tfrecord", reader.attr["compression_type"].s.decode())
    if operation == "FixedLengthRecordReader":
        sizes = {name: reader.attr[f"{name}_bytes"].i for name in ("record", "header", "footer", "hop")}
        return Format("fixed", reader.attr["encoding"].s.decode(), **sizes)
    if operation == "TextLineReader":
        return Format("lines", skipped_lines=reader.attr["skip_header_lines"].i)
    return Format("whole")
