"""tf.data Datasets: sent to the ranks as graphs for training, read in this process for predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from orca.errors import DataError
from orca.shards.adapters.base import Form
from orca.shards.adapters.batches import BatchesAdapter, weight_refused
from orca.shards.adapters.tf_graphs import Graph, to_graph
from orca.shards.adapters.tf_streams import (
    NEVER_ENDS,
    CreatedTensorFlowStream,
    TensorFlowStream,
    is_endless,
    own_policy,
)
from orca.shards.on_rank import Source

FETCH_ROWS = 1024
_KEEP = ("prefetch", "options", "repeat", "take", "skip", "cache", "shuffle", "filter", "shard", "cardinality")
"""Words in the names of steps after which an element is still what it was before."""


_UNKNOWN_CARDINALITY = -2
_END = object()


class TensorFlowAdapter(BatchesAdapter):
    """A tf.data.Dataset."""

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("tensorflow") and base.__name__ == "DatasetV2" for base in type(data).__mro__
        )

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        _check_eager(data)
        with _eager():
            # A dataset of a generator, or behind a filter, does not know its length.
            self.ends = int(data.cardinality()) != _UNKNOWN_CARDINALITY

    def batches(self, rows: int | None = None) -> Iterator[Any]:
        return batches(self.data, rows)

    def source(self, form: Form) -> TensorFlowStream:
        weight_refused(self.data, form)
        with _eager():
            if is_endless(self.data) and form.most_rows is None:
                raise DataError(NEVER_ENDS)
            graph, problem = _graph(self.data)
            if graph is not None:
                return self._stream(graph, form)
        raise DataError(
            f"{form.argument}= is a tf.data.Dataset that {problem}, so it cannot be sent to the workers. Give a "
            "function fn(config, batch_size) that returns it: every worker calls the function."
        )

    def created(self, creator: Callable[[], Any], form: Form) -> Source:
        weight_refused(self.data, form)
        graph, _ = _graph(self.data)
        if graph is not None:
            return self._stream(graph, form)
        batched = is_batched(self.data)
        return CreatedTensorFlowStream(creator, self.data, files=self._file_count, batched=batched, form=form)

    def _file_count(self, most: int) -> int:
        try:
            return Graph(to_graph(self.data)).file_count(most)
        except Exception:
            return 0  # unknown: every rank reads all rows and takes its share

    def _stream(self, graph: bytes, form: Form) -> TensorFlowStream:
        data = self.data
        return TensorFlowStream(
            graph,
            data.element_spec,
            batched=is_batched(data),
            endless=is_endless(data),
            policy=own_policy(data),
            form=form,
        )

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        return True


def _eager() -> AbstractContextManager[None]:
    """Return a context with eager execution, also within a graph that the user's program builds."""
    from tensorflow.python.eager import context

    return context.eager_mode()  # type: ignore[no-any-return]


def _check_eager(dataset: Any) -> None:
    import tensorflow as tf

    if tf.is_symbolic_tensor(dataset._variant_tensor):
        raise DataError(
            "The tf.data.Dataset was created while a graph was built, so it is part of that graph. Create it before "
            "the first placeholder, after Estimator.from_graph, or outside of `with tf.Graph().as_default():`."
        )


def _graph(dataset: Any) -> tuple[bytes | None, str]:
    """Return the graph of a dataset that any process can run; else None and the reason."""
    try:
        graph = to_graph(dataset)
    except Exception as error:
        return None, f"cannot be turned into a graph ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
    if Graph(graph).runs_python:
        return None, "calls Python functions (from_generator, py_function or numpy_function)"
    return graph, ""


def batches(dataset: Any, rows: int | None = None) -> Iterator[Any]:
    """Yield the dataset's rows as batches of arrays; a dataset that is batched already keeps its own batches."""
    with _eager():
        if is_endless(dataset):
            raise DataError("The tf.data.Dataset never ends, as after repeat() without a number. Leave repeat() out.")
        if not is_batched(dataset):
            dataset = dataset.batch(min(FETCH_ROWS, rows or FETCH_ROWS))
        elements = dataset.as_numpy_iterator()
    while True:
        with _eager():
            element = next(elements, _END)
        if element is _END:
            return
        yield element


def is_batched(dataset: Any) -> bool:
    """Whether the dataset's elements are batches: some step forms them, and none after it takes them apart."""
    name = type(dataset).__name__.lower()
    if "batch" in name:
        return "unbatch" not in name
    source = getattr(dataset, "_input_dataset", None)
    if source is None or not is_batched(source):
        return False
    if any(word in name for word in _KEEP):
        return True
    # A function that works on whole batches leaves their rows in the first place.
    return "map" in name and "flat" not in name and _rows(dataset) <= _rows(source) | {"any"}


def _rows(dataset: Any) -> set[int | str | None]:
    """How many rows the parts of an element have, as far as it is known; "any" where not even the shape is."""
    import tensorflow as tf

    shapes = [part.shape for part in tf.nest.flatten(dataset.element_spec)]
    return {"any" if shape.rank is None else (shape[0] if shape.rank else "none") for shape in shapes}
