"""The tf.data pipelines of a graph: found behind its iterators, and cut by files, by rows or by elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph.pipelines.dataset_units import (
    Elements,
    Reader,
    const,
    ending_at,
    file_nodes,
    find_readers,
    first_datasets,
    result_node,
)
from orca.backends.graph.pipelines.freezing import Source, with_constants
from orca.backends.graph.pipelines.plan import Branch, DatasetSource
from orca.backends.graph.pipelines.records import Format
from orca.backends.graph.program import called_functions, node_of
from orca.errors import ArgumentError, DataError, listed
from orca.shards.adapters.tf_graphs import READERS, Graph

ENTRIES = ("IteratorGetNext", "IteratorGetNextSync")
_ONCE = ("ShuffleDataset", "ShuffleAndRepeatDataset", "RepeatDataset", "CacheDataset")
"""Beginnings of datasets that are left out: every record comes once, in the order of the files."""
_BATCHES = {
    "BatchDataset": None, "BatchDatasetV2": 2, "PaddedBatchDataset": None, "PaddedBatchDatasetV2": -1,
    "ParallelBatchDataset": 3, "MapAndBatchDataset": -1,
}  # fmt: skip
"""Datasets that make batches, and the position of the input that drops a short one."""
_PASS = (
    "MapDataset", "ParallelMapDataset", "PrefetchDataset", "FilterDataset", "OptionsDataset", "ModelDataset",
    "AssertNextDataset", "TakeDataset", "SkipDataset", "ShardDataset", "FinalizeDataset", "ZipDataset",
)  # fmt: skip
"""Beginnings of datasets whose elements have rows if those of their input have."""
_POSITIONS = (
    "TakeDataset", "SkipDataset", "ShardDataset", "WindowDataset", "ZipDataset", "ConcatenateDataset", "ScanDataset",
    "GroupBy", "TakeWhile", "SampleFrom", "Sampling", "Rebatch", "UniqueDataset",
)  # fmt: skip
"""Beginnings of datasets that depend on which elements came before."""
_READS_FILE = ("ReadFile",)


def branch(source: Source, entry: Any, picks: tuple[int, ...], files: Sequence[str] | None) -> Branch:
    """Return the branch of an iterator, with the files that its pipeline reads."""
    graph = Graph(_serialized(source, entry, files))
    _check_python(graph, entry)
    graph.keep_order()
    for _, nodes, _ in graph.scopes():
        _bypass(nodes)
    for function in graph.proto.library.function:
        _bypass(function.node_def, function)
    _keep_short_batches(graph)
    mode, form, names = _cut(graph, entry)
    return Branch(
        DatasetSource(
            graph.proto.SerializeToString(), tuple(entry.attr["output_types"].list.type), picks, mode, form
        ),
        (),
        _batched(graph),
        names,
        origin=entry.name,
        takes_files=mode == "files",
        batch_rows=_batch_rows(entry),
    )  # fmt: skip


# On the driver: the pipeline as a graph


def _serialized(source: Source, entry: Any, files: Sequence[str] | None) -> bytes:
    """Return the pipeline behind an iterator as a serialized graph of its own."""
    iterator = source.resolve(entry.input[0])
    if iterator.op == "OneShotIterator":
        graph_def = _call(source, iterator)
        target = "orca_dataset:0"
    elif iterator.op in ("IteratorV2", "Iterator"):
        target, graph_def = _initialized(source, iterator, files)
    else:
        raise ArgumentError(
            f"The node {iterator.name!r} is a {iterator.op}, which is not supported in a pipeline. Supported are "
            "one-shot and initializable iterators."
        )
    graph = v1.Graph()
    with graph.as_default():
        v1.import_graph_def(graph_def, name="")
        serialized = v1.raw_ops.DatasetToGraphV2(
            input_dataset=graph.get_tensor_by_name(target), external_state_policy=1, strip_device_assignment=True
        )
        with v1.Session(graph=graph) as session:
            try:
                return bytes(session.run(serialized))
            except v1.errors.OpError as error:
                raise DataError(
                    f"The tf.data pipeline of {entry.name!r} cannot be sent to workers: {error.message[:300]}"
                ) from error


def _call(source: Source, iterator: Any) -> Any:
    """Return a graph that calls the function in which a one-shot iterator keeps its pipeline."""
    graph_def = v1.GraphDef()
    graph_def.versions.CopyFrom(source.graph_def.versions)
    node = graph_def.node.add(name="orca_dataset", op="StatefulPartitionedCall")
    node.attr["f"].func.name = iterator.attr["dataset_factory"].func.name
    node.attr["Tin"].list.SetInParent()
    node.attr["Tout"].list.type.append(v1.variant.as_datatype_enum)
    graph_def.library.function.extend(called_functions(source.graph_def, [node]))
    return graph_def


def _initialized(source: Source, iterator: Any, files: Sequence[str] | None) -> tuple[str, Any]:
    """Return the dataset that initializes an iterator, and the graph that it needs."""
    makers = [
        node
        for node in source.graph_def.node
        if node.op == "MakeIterator" and source.resolve(node.input[1]).name == iterator.name
    ]
    if len(makers) != 1:
        found = f"{len(makers)} initializers: {listed(node.name for node in makers)}" if makers else "no initializer"
        raise ArgumentError(
            f"No list of files found: the iterator {iterator.name!r} has {found}. Dump a graph in which one pipeline "
            "initializes it."
        )
    dataset = makers[0].input[0]
    holders = [node for node in source.upstream([dataset]) if node.op.startswith("Placeholder") and not node.input]
    for holder in holders:
        if holder.attr["dtype"].type != v1.string.as_datatype_enum or files is None:
            raise ArgumentError(
                f"No list of files found: the pipeline of the iterator {iterator.name!r} depends on the placeholder "
                f"{holder.name!r}, for which there is no data. Pass files=, or feed_dict={{{holder.name!r}: …}}."
            )
    if holders:
        source = _with_files(source, holders, files or ())
    part = source.part([dataset], (), steps=False)
    return part.fetches[0], v1.GraphDef.FromString(part.graph)


def _with_files(source: Source, holders: Sequence[Any], files: Sequence[str]) -> Source:
    """Return the graph with files in the place of placeholders."""
    feeds: dict[str, Any] = {}
    for holder in holders:
        shape = v1.TensorShape(holder.attr["shape"].shape)
        if shape.rank == 0 and len(files) > 1:
            raise ArgumentError(f"files= has {len(files)} files; the placeholder {holder.name!r} takes one.")
        feeds[holder.name] = files[0] if shape.rank == 0 else list(files)
    return Source(with_constants(source.graph_def, feeds), source.values)


def _check_python(graph: Graph, entry: Any) -> None:
    if graph.runs_python:
        raise ArgumentError(
            f"The tf.data pipeline of {entry.name!r} calls a Python function (tf.py_func, from_generator), which is "
            "not part of the graph: the workers do not have it. Replace it by TensorFlow operations."
        )


def _bypass(nodes: Any, function: Any = None) -> None:
    """Connect what follows a shuffle, a repetition or a cache with what is before it."""
    skipped = {node.name: node.input[0] for node in nodes if node.op.startswith(_ONCE)}

    def source(name: str) -> str:
        while node_of(name) in skipped and not name.startswith("^"):
            name = skipped[node_of(name)]
        return name

    for node in nodes:
        for number, name in enumerate(node.input):
            node.input[number] = source(name)
    for key in function.ret if function is not None else ():
        function.ret[key] = source(function.ret[key])


def _keep_short_batches(graph: Graph) -> None:
    for _, nodes, suffix in graph.scopes():
        for node in list(nodes):
            place = _BATCHES.get(node.op)
            if place is not None:
                data = [number for number, name in enumerate(node.input) if not name.startswith("^")]
                node.input[data[place]] = (
                    const(nodes, f"orca_{node.name}_drop".replace("/", "_"), np.array(False)) + suffix
                )


def _batch_rows(entry: Any) -> int | None:
    """Return the first axis of the elements, where the graph fixes it."""
    sizes = {shape.dim[0].size for shape in entry.attr["output_shapes"].list.shape if shape.dim}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 0 else None


def _batched(graph: Graph) -> bool:
    """Whether the elements of a pipeline are batches."""
    nodes = {node.name: node for node in graph.proto.node}
    node = nodes[result_node(graph).input[0].partition(":")[0]]
    while node.op.startswith(_PASS) and node.input:
        node = nodes[node_of(node.input[0])]
    return node.op in _BATCHES


def _cut(graph: Graph, entry: Any) -> tuple[str, Format | None, tuple[str, ...] | None]:
    """Return how a pipeline is cut into units, the format of its files and their names."""
    readers = find_readers(graph)
    owners = file_nodes(graph, readers)
    names = _file_names(graph, owners[0]) if len(owners) == 1 else None
    before = graph.upstream([owners[0].input[0]]) if names is not None else {}
    ordered = any(node.op.startswith(_POSITIONS) for node in graph.proto.node if node.name not in before)
    if names is not None and not ordered:
        inside = any(node.op.startswith(_POSITIONS) for scope, nodes, _ in graph.scopes() if scope for node in nodes)
        return "files", None if inside or len(readers) > 1 else _format(readers[0]), names
    reads = readers or any(node.op in _READS_FILE for _, nodes, _ in graph.scopes() for node in nodes)
    if not reads:
        raise ArgumentError(
            f"No list of files found: the tf.data pipeline of {entry.name!r} reads no file. Rows that are in memory "
            "already become shards with XShards.partition."
        )
    return "elements" if ordered or len(first_datasets(graph)) != 1 or row_count(graph) < 0 else "rows", None, None


def _file_names(graph: Graph, owner: Any) -> tuple[str, ...] | None:
    """Return the names of the files that a node reads; None if its input is more than names."""
    if owner.op.startswith(READERS):
        node = next(one for one in graph.proto.node if one.name == node_of(owner.input[0]))
        if node.op != "Const":
            return None
        return tuple(name.decode() for name in v1.make_ndarray(node.attr["value"].tensor).reshape(-1))
    files = next(node for node in graph.proto.node if node.name == node_of(owner.input[0]))
    types = files.attr["Toutput_types" if "Toutput_types" in files.attr else "output_types"].list.type
    if list(types) != [v1.string.as_datatype_enum]:
        return None
    elements = Elements((v1.string.as_datatype_enum,))
    try:
        names = [element[0] for element in elements.of(ending_at(graph, owner.input[0]))]
    finally:
        elements.close()
    return tuple(name.decode() for name in names) if all(isinstance(name, bytes) for name in names) else None


def _format(reader: Reader) -> Format | None:
    """Return the format of the files, if the operation's settings are constants."""
    constants = {node.name: v1.make_ndarray(node.attr["value"].tensor) for node in reader.nodes if node.op == "Const"}
    settings = [node_of(name) for name in reader.node.input[1:] if not name.startswith("^")]
    if not all(name in constants for name in settings):
        return None
    values = [constants[name].item() for name in settings]
    text = [value.decode() for value in values if isinstance(value, bytes)]
    compression = text[0] if text else ""
    if reader.node.op == "TFRecordDataset":
        return Format("tfrecord", compression)
    if reader.node.op in ("FixedLengthRecordDataset", "FixedLengthRecordDatasetV2"):
        return Format("fixed", compression, header=values[0], record=values[1], footer=values[2])
    return Format("lines", compression) if reader.node.op == "TextLineDataset" else None


def row_count(graph: Graph) -> int:
    """Return the number of rows of the first dataset; negative if it is not known."""
    root = first_datasets(graph)[0]
    with v1.Graph().as_default() as own, v1.Session(graph=own) as session:
        variant = v1.raw_ops.DatasetFromGraph(graph_def=ending_at(graph, root.name))
        return int(session.run(v1.raw_ops.DatasetCardinality(input_dataset=variant)))
