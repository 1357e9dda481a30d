"""tf.data pipelines on the ranks: run in every epoch, sharded by file or by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.adapters.base import Form
from orca.shards.adapters.tf_graphs import Graph, auto_sharded, from_graph
from orca.shards.adapters.trees import Trees
from orca.shards.on_rank import SCORING_EPOCH, Reader
from orca.shards.streams import StreamRows, StreamSource
from orca.shards.tree import Tree

OFF, AUTO, FILE, DATA, HINT = -1, 0, 1, 2, 3
"""The values of tf.data.experimental.AutoShardPolicy."""
NEVER_ENDS = (
    "The tf.data.Dataset never ends, as after repeat() without a number. Pass steps_per_epoch= or max_steps=, or leave "
    "repeat() out: every epoch reads all rows again."
)


class TensorFlowStream(StreamSource):
    """A tf.data pipeline that travels as a graph.

    Args:
        graph: The serialized graph.
        element_spec: The types of an element.
        batched: Whether elements are batches.
        endless: Whether it is known to have no end.
        policy: The dataset's own auto_shard_policy.
        form: How to read the rows.
    """

    def __init__(
        self, graph: bytes, element_spec: Any, *, batched: bool, endless: bool, policy: int, form: Form
    ) -> None:
        self._graph, self._spec = graph, element_spec
        self._batched, self._endless, self._policy = batched, endless, policy
        self._trees = Trees(form)
        self._kept: Any = None
        """The dataset that serves all passes, if it keeps rows in memory."""
        self._begun = 0
        """How many passes of it have begun."""

    def open(self, reader: Reader) -> StreamRows:
        if self._endless and reader.ends:
            raise DataError(NEVER_ENDS)
        self._policy = chosen_policy(self._policy, reader.world, Graph(self._graph).file_count)
        self.whole = self._policy == DATA
        return super().open(reader)

    def stream(self, reader: Reader, number: int, size: int) -> Iterator[Tree]:
        return self._trees(_arrays(self._pass(reader, number), self._batched, size))

    def _pass(self, reader: Reader, number: int) -> Any:
        if self._kept is None:
            graph = Graph(self._graph)
            keeps = graph.caches
            graph.seed(reader.seed, number=None if keeps else number)
            policy = self._policy
            if policy == FILE:
                graph.shard_files(reader.world, reader.rank)
                policy = OFF
            elif policy == DATA:
                graph.keep_order()
            dataset = sharded(from_graph(graph.proto, self._spec), reader, policy)
            if not keeps:
                return dataset
            self._kept = dataset
        # Such a dataset shuffles by how often it was begun: a resumed run begins as often as an undisturbed one.
        for _ in range(self._begun, 0 if number == SCORING_EPOCH else number):
            iter(self._kept)
        self._begun = self._begun + 1 if number == SCORING_EPOCH else number + 1
        return self._kept

    def close(self) -> None:
        self._kept, self._begun = None, 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_begun": 0}


class CreatedTensorFlowStream(StreamSource):
    """A tf.data pipeline that calls Python functions; its creator is called for every pass, with a seed."""

    def __init__(
        self, creator: Callable[[], Any], dataset: Any, *, files: Callable[[int], int], batched: bool, form: Form
    ) -> None:
        self._creator, self._file_count = creator, files
        self._batched, self._endless, self._policy = batched, is_endless(dataset), own_policy(dataset)
        self._trees = Trees(form)

    def open(self, reader: Reader) -> StreamRows:
        if self._endless and reader.ends:
            raise DataError(NEVER_ENDS)
        self._policy = chosen_policy(self._policy, reader.world, self._file_count)
        self.whole = self._policy == DATA
        return super().open(reader)

    def stream(self, reader: Reader, number: int, size: int) -> Iterator[Tree]:
        with _seeded(reader.seed, number):
            dataset = self._creator()
        return self._trees(_arrays(sharded(dataset, reader, self._policy), self._batched, size))


def own_policy(dataset: Any) -> int:
    """Return the dataset's own auto_shard_policy."""
    return int(dataset.options().experimental_distribute.auto_shard_policy)


def is_endless(dataset: Any) -> bool:
    """Whether a dataset is known to have no end."""
    import tensorflow as tf

    return bool(int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY)


def chosen_policy(policy: int, world: int, file_count: Callable[[int], int]) -> int:
    """Return how ranks share a pipeline: by file if there are enough files, else each takes its part of the rows."""
    if world == 1:
        return DATA
    if policy not in (AUTO, FILE):
        return policy
    files = file_count(world)
    if files >= world:
        return FILE
    if policy == FILE:
        raise DataError(
            f"auto_shard_policy FILE gives every worker at least one file, but the tf.data.Dataset reads {files} and "
            f"there are {world} workers. Use AUTO or DATA, more files or fewer workers."
        )
    return DATA


def sharded(dataset: Any, reader: Reader, policy: int) -> Any:
    """Return what one rank reads of a pipeline: its own files, or everything."""
    import tensorflow as tf

    if policy == DATA:
        # All ranks have to see the rows in the same order.
        options = tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options)
    return dataset if policy == OFF else auto_sharded(dataset, reader.world, reader.rank, policy)


def _arrays(dataset: Any, batched: bool, size: int) -> Iterator[Any]:
    import tensorflow as tf

    rows = (dataset if batched else dataset.batch(size)).prefetch(tf.data.AUTOTUNE)
    return elements(rows) if _is_plain(rows.element_spec) else rows.as_numpy_iterator()


def elements(dataset: Any) -> Iterator[Any]:
    """Yield what `as_numpy_iterator` does, of a dataset of dicts and tuples of tensors.

    That method derives the structure again for every element, which takes longer than handing over the element.
    """
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec)
    types: Any = {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}
    arranged = _arrangement(dataset.element_spec)
    with tf.device("CPU"):
        iterator = tf.raw_ops.AnonymousIteratorV3(**types)
        tf.raw_ops.MakeIterator(dataset=tf.data.experimental.to_variant(dataset), iterator=iterator)
    while True:
        try:
            tensors = tf.raw_ops.IteratorGetNext(iterator=iterator, **types)
        except tf.errors.OutOfRangeError:
            return
        yield arranged(map(_array, tensors))


def _array(tensor: Any) -> Any:
    """Return the values of a tensor without a copy; it must not change, so they are read-only."""
    array = tensor.__array__()
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def _is_plain(spec: Any) -> bool:
    """Whether elements are tensors, alone or in dicts and tuples."""
    import tensorflow as tf

    if type(spec) in (dict, tuple):
        return all(map(_is_plain, spec.values() if type(spec) is dict else spec))
    return type(spec) is tf.TensorSpec


def _arrangement(spec: Any) -> Callable[[Iterator[Any]], Any]:
    """Return a function that arranges an element's arrays, which are in the order of `tf.nest`, as the spec says."""
    if isinstance(spec, dict):
        entries = [(key, _arrangement(spec[key])) for key in sorted(spec)]

        def as_dict(arrays: Iterator[Any]) -> dict[Any, Any]:
            values = {key: part(arrays) for key, part in entries}
            return {key: values[key] for key in spec}

        return as_dict
    if isinstance(spec, tuple):
        parts = [_arrangement(part) for part in spec]
        return lambda arrays: tuple([part(arrays) for part in parts])
    return next


@contextmanager
def _seeded(seed: int, number: int) -> Iterator[None]:
    """Seed what a creator builds with TensorFlow, and leave the seeds of the training as they were."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    state = context.context()
    before = state._seed, state._rng
    tf.random.set_seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))
    try:
        yield
    finally:
        state._seed, state._rng = before
