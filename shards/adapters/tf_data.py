"""tf.data Datasets, fetched batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orca.errors import DataError
from orca.shards.adapters.batches import BatchesAdapter

FETCH_ROWS = 1024
_KEEP = ("prefetch", "options", "repeat", "take", "skip", "cache", "shuffle", "filter", "shard", "cardinality")
"""Words in the names of steps after which an element is still what it was before."""


_UNKNOWN_CARDINALITY = -2


class TensorFlowAdapter(BatchesAdapter):
    """A tf.data.Dataset."""

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("tensorflow") and base.__name__ == "DatasetV2" for base in type(data).__mro__
        )

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        # A dataset of a generator, or behind a filter, does not know its length.
        self.ends = int(data.cardinality()) != _UNKNOWN_CARDINALITY

    def batches(self, rows: int | None = None) -> Iterator[Any]:
        return batches(self.data, rows)

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        return True


def batches(dataset: Any, rows: int | None = None) -> Iterator[Any]:
    """Yield the dataset's rows as batches of arrays; a dataset that is batched already keeps its own batches."""
    import tensorflow as tf

    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            "The tf.data.Dataset never ends, as after repeat() without a number. Leave repeat() out: every epoch reads "
            "all rows again; steps_per_epoch= cuts an epoch short."
        )
    if not is_batched(dataset):
        dataset = dataset.batch(min(FETCH_ROWS, rows or FETCH_ROWS))
    yield from dataset.as_numpy_iterator()


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
