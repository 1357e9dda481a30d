"""tf.data pipelines as graphs: how they travel to ranks, and how their random numbers and files are set there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

_PYTHON_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "SSTableDataset", "CSVDataset")
"""Beginnings of the names of operations that read files."""
_EACH_FILE = ("FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset", "LegacyParallelInterleaveDataset")
_SEED_INPUTS = {
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
    "ShuffleAndRepeatDataset": 2,
    "ShuffleAndRepeatDatasetV2": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
    "SamplingDataset": 2,
}
"""Datasets that take two seeds as inputs, and the position of the first."""
_RESOURCES = {
    "ShuffleDatasetV3": (4, "DummySeedGenerator"),
    "ShuffleAndRepeatDatasetV2": (5, "DummySeedGenerator"),
    "RandomDatasetV2": (2, "DummySeedGenerator"),
    "CacheDatasetV2": (2, "DummyMemoryCache"),
}
"""Datasets with a resource that another process does not have: its position, and what stands for a new one."""
_IGNORE_STATE = 1


def to_graph(dataset: Any) -> bytes:
    """Return a dataset as a serialized GraphDef; captured arrays are part of it."""
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(dataset)
    graph: bytes = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant, external_state_policy=_IGNORE_STATE, strip_device_assignment=True
    ).numpy()
    return graph


def from_graph(graph: Any, element_spec: Any) -> Any:
    """Return the dataset of a GraphDef."""
    import tensorflow as tf

    return tf.data.experimental.from_variant(
        tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString()), element_spec
    )


class Graph:
    """The graph of a pipeline, with resources that any process can create."""

    def __init__(self, serialized: bytes) -> None:
        from tensorflow.core.framework import graph_pb2

        self.proto = graph_pb2.GraphDef.FromString(serialized)
        # Within functions resources are created by operations; at the top they are handles of another process.
        handles = {node.name for node in self.proto.node if node.op == "Const" and _is_resource(node)}
        for node in list(self.proto.node):
            position, op = _RESOURCES.get(node.op, (0, ""))
            if op and node.input[position] in handles:
                node.input[position] = self.proto.node.add(name=f"orca/{node.name}/resource", op=op).name

    @property
    def runs_python(self) -> bool:
        """Whether the pipeline calls Python functions, which belong to one process."""
        return any(node.op in _PYTHON_OPS for node in self._nodes())

    @property
    def caches(self) -> bool:
        """Whether the pipeline keeps rows in memory for further passes."""
        return any(node.op.startswith("CacheDataset") for node in self._nodes())

    def seed(self, *key: int, number: int | None) -> None:
        """Set all seeds, by a key and the number of the pass; None if one dataset object serves all passes.

        A shuffle that repeats its order in every pass keeps doing that. If one object serves all passes, random
        operations after what it keeps in memory stay as they are: with a seed they would repeat themselves.
        """
        kept = self._before_cache() if number is None else None
        for index, (scope, nodes, output) in enumerate(self.scopes()):
            for place, node in enumerate(list(nodes)):
                first = _SEED_INPUTS.get(node.op)
                varies = number is not None and not _repeats(node)
                numbers = (*key, index, place, *((number,) if number is not None and varies else ()))
                if first is not None:
                    for offset, value in enumerate(_two_seeds(numbers)):
                        name = f"orca/{node.name}/seed{offset}".replace("/", "_" if output else "/")
                        node.input[first + offset] = _add_const(nodes, name, value) + output
                elif (kept is None or scope in kept) and "seed" in node.attr and "seed2" in node.attr:
                    node.attr["seed"].i, node.attr["seed2"].i = _two_seeds((*numbers, node.attr["seed2"].i))

    def keep_order(self) -> None:
        """Make operations that may yield their elements as they become ready keep the order."""
        for node in self._nodes():
            if "deterministic" in node.attr:
                node.attr["deterministic"].s = b"true"
            if "sloppy" in node.attr:
                node.attr["sloppy"].b = False

    def file_count(self, most: int) -> int:
        """Return how many files the pipeline reads, counted no further than `most`; 0 if it reads none."""
        import tensorflow as tf

        counts = []
        for node in self.reading_nodes():
            files = type(self.proto).FromString(self.proto.SerializeToString())
            output = next(other for other in files.node if other.op == "_Retval")
            output.input[0] = node.input[0]
            names = from_graph(files, tf.TensorSpec(None, tf.string)).take(most)
            counts.append(sum(1 for _ in names))
        return min(counts, default=0)

    def shard_files(self, world: int, rank: int) -> None:
        """Let the pipeline read every `world`-th file only, beginning with that of `rank`."""
        nodes = {node.name: node for node in self.proto.node}
        for node in self.reading_nodes():
            files = nodes[node.input[0]]
            shard = self.proto.node.add(name=f"orca/{node.name}/shard", op="ShardDataset", input=[files.name])
            for name, value in (("world", world), ("rank", rank)):
                const = _add_const(self.proto.node, f"orca/{node.name}/{name}", value)
                shard.input.append(const)
            types = files.attr["Toutput_types" if "Toutput_types" in files.attr else "output_types"]
            shard.attr["output_types"].CopyFrom(types)
            shard.attr["output_shapes"].CopyFrom(files.attr["output_shapes"])
            shard.attr["require_non_empty"].b = False
            node.input[0] = shard.name

    def reading_nodes(self) -> list[Any]:
        """Return the nodes that read each file of a list of files; of several in a row only the first."""
        functions = {function.signature.name: function for function in self.proto.library.function}
        reading = {
            node.name: node
            for node in self.proto.node
            if node.op.startswith(_EACH_FILE) and _reads(functions, [node.attr["f"].func.name])
        }
        return [
            node for node in reading.values() if not any(name in reading for name in self.upstream([node.input[0]]))
        ]

    def upstream(self, names: Iterable[str]) -> dict[str, Any]:
        """Return these nodes and all that they depend on, by name."""
        nodes = {node.name: node for node in self.proto.node}
        pending, upstream = list(names), {}
        while pending:
            node = nodes.get(pending.pop().lstrip("^"))
            if node is not None and node.name not in upstream:
                upstream[node.name] = node
                pending += node.input
        return upstream

    def _before_cache(self) -> set[str]:
        """Return the functions whose results are kept in memory."""
        caches = [node for node in self.proto.node if node.op.startswith("CacheDataset")]
        before = self.upstream(name for node in caches for name in node.input)
        return {name for name, _, _ in self.scopes(before.values()) if name}

    def scopes(self, first: Iterable[Any] | None = None) -> Iterator[tuple[str, Any, str]]:
        """Yield the nodes of the graph and of each function: name, nodes, and what follows a node's name in inputs.

        Functions come in the order of their use: their names, and so their order in the graph, vary.
        """
        yield "", self.proto.node, ""
        functions = {function.signature.name: function for function in self.proto.library.function}
        pending = _functions_of(self.proto.node if first is None else first)
        while pending:
            name = pending.pop(0)
            function = functions.pop(name, None)
            if function is not None:
                pending += _functions_of(function.node_def)
                yield name, function.node_def, ":output:0"

    def _nodes(self) -> Iterator[Any]:
        for _, nodes, _ in self.scopes():
            yield from nodes


def auto_sharded(dataset: Any, world: int, rank: int, policy: int) -> Any:
    """Return one rank's part of a dataset, as TensorFlow's own rewriter cuts it."""
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec)
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=world,
        index=rank,
        auto_shard_policy=policy,
        num_replicas=world,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def _add_const(nodes: Any, name: str, value: int) -> str:
    """Add a node with an integer, and return its name."""
    import tensorflow as tf

    const = nodes.add(name=name, op="Const")
    const.attr["dtype"].type = tf.int64.as_datatype_enum
    const.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
    return name


def _functions_of(nodes: Iterable[Any]) -> list[str]:
    """Return the names of the functions that nodes use, in a fixed order."""
    return [node.attr[key].func.name for node in nodes for key in sorted(node.attr) if node.attr[key].func.name]


def _is_resource(node: Any) -> bool:
    from tensorflow.core.framework import types_pb2

    return bool(node.attr["dtype"].type == types_pb2.DT_RESOURCE)


def _repeats(node: Any) -> bool:
    """Whether a shuffle has the same order in every pass."""
    return "reshuffle_each_iteration" in node.attr and not node.attr["reshuffle_each_iteration"].b


def _two_seeds(key: Sequence[int]) -> list[int]:
    state = np.random.SeedSequence([abs(part) for part in key]).generate_state(2)
    return [int(value) or 1 for value in state]


def _reads(functions: dict[str, Any], names: Iterable[str]) -> bool:
    """Whether one of some functions, or of those that they use, reads files."""
    for name in names:
        for node in functions[name].node_def if name in functions else ():
            if node.op.startswith(READERS):
                return True
            if _reads(functions, _functions_of([node])):
                return True
    return False
