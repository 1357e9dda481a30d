"""`load_pipeline`: TensorFlow graphs that read and prepare their own data, run on the workers of the context."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from orca.context import current
from orca.core.arguments import check_count, check_mapping, check_path, known_arguments, optional, wrong
from orca.errors import ArgumentError
from orca.shards.readers.paths import listing
from orca.shards.xshards import XShards

_SHARD_BYTES = 64 << 20
"""The approximate size of a shard of features."""


@known_arguments
def load_pipeline(model_pb: str | os.PathLike[str], model_bin: str | os.PathLike[str] | None = None) -> Pipeline:
    """Load a graph that `dump_model` has written.

    Args:
        model_pb: The graph, ``model.pb``, or a folder that holds it.
        model_bin: The values of its variables, ``model.bin``. Default: the file beside the graph, if there is one; a
            graph whose variables are constants needs none.

    Returns:
        A pipeline, whose `Pipeline.features` runs it.

    Raises:
        DataError: If a file does not exist or cannot be read.
    """
    from orca.backends.graph.pipelines import dumping

    path, values_path = check_path("model_pb", model_pb), optional(check_path)("model_bin", model_bin)
    graph_path = os.path.join(path, dumping.GRAPH_FILE) if os.path.isdir(path) else path
    graph_def = dumping.read_graph(graph_path)
    beside = os.path.join(os.path.dirname(graph_path), dumping.VALUES_FILE)
    if values_path is not None:
        return Pipeline(graph_def, dumping.read_variables(values_path))
    return Pipeline(graph_def, dumping.read_variables(beside) if os.path.isfile(beside) else {})


class Pipeline:
    """A graph with the operations that read, decode and prepare data; create one with `load_pipeline`."""

    def __init__(self, graph_def: Any, values: Mapping[str, Any]) -> None:
        self._graph_def = graph_def
        self._values = dict(values)

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes of the graph."""
        return [node.name for node in self._graph_def.node]

    @property
    def variables(self) -> list[str]:
        """The names of the variables that have values."""
        return sorted(self._values)

    def __repr__(self) -> str:
        return f"<Pipeline: {len(self._graph_def.node)} nodes, {len(self._values)} variables>"

    @known_arguments
    def features(
        self,
        nodes: str | Sequence[str] | Mapping[str, str],
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        *,
        feed_dict: Mapping[str, Any] | None = None,
        num_shards: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> XShards:
        """Compute nodes of the graph for every record that it reads, once, on the workers.

        Queues are not run: records are read from the files, pass the operations between the queues and make batches
        of the graph's own size, the last one as short as it is. Shuffles and repetitions are left out.

        Args:
            nodes: Names of nodes, or a dict of the keys of the results and the names of nodes.
            files: A path, a folder, a glob, an fsspec URL, or a list of them. Default: the files that the graph names.
            feed_dict: Values of placeholders by name, such as ``{"is_training": False}``.
            num_shards: Number of shards. Default: one for each core of the context, or more if they would be large.
            storage_options: Options of the fsspec file system, for `files`.

        Returns:
            XShards of dicts with an array for each node, in the order of the files. They are lazy: call `cache` before
            they are used several times.

        Raises:
            ArgumentError: If a node does not exist, needs a placeholder without a value, or does not depend on data
                that the graph reads; if a reader or a queue is not supported, or no list of files is found.
            DataError: If a file does not exist, or a variable has no value.
            TransformError: When the result is needed, if a record is damaged; the message names its file.
        """
        names = _names(nodes)
        options = dict(check_mapping("storage_options", storage_options)) if storage_options is not None else None
        chosen = None if files is None else listing(files, options, argument="files")
        feeds = (
            {}
            if feed_dict is None
            else {str(key): value for key, value in check_mapping("feed_dict", feed_dict).items()}
        )
        from orca.backends.graph.pipelines.planning import plan_work
        from orca.backends.graph.pipelines.running import Compute

        context = current()
        engine = context.engine
        work = plan_work(
            self._graph_def,
            self._values,
            names,
            chosen,
            feeds,
            count=context.cores if num_shards is None else check_count("num_shards", num_shards),
            exact=num_shards is not None,
            shard_bytes=min(engine.shard_bytes, _SHARD_BYTES),
            threads=engine.task_threads,
        )
        context.prefer(("tensorflow",))
        return XShards(engine, engine.put(work.units)).transform_shard(Compute(work.plan))


def _names(nodes: Any) -> dict[str, str]:
    """Return the nodes to compute by the keys of the results."""
    expected = 'names of nodes, such as ["features", "labels"], or a dict of keys and names'
    if isinstance(nodes, str):
        nodes = [nodes]
    if isinstance(nodes, Mapping):
        names = dict(nodes)
    elif isinstance(nodes, Sequence) and not isinstance(nodes, bytes):
        if len(set(map(str, nodes))) < len(nodes):
            raise ArgumentError(f"nodes={list(nodes)!r} holds a name twice.")
        names = {name: name for name in nodes if isinstance(name, str)}
        if len(names) < len(nodes):
            raise wrong("nodes", nodes, expected)
    else:
        raise wrong("nodes", nodes, expected)
    if not names or not all(isinstance(part, str) and part for pair in names.items() for part in pair):
        raise wrong("nodes", nodes, expected)
    return names
