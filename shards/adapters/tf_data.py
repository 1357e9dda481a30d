"""tf.data Datasets as arrays, fetched batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FETCH_ROWS = 1024


def batches(dataset: Any) -> Iterator[Any]:
    """Yield the dataset's rows as batches of arrays; a dataset that is batched already keeps its own batches."""
    if not is_batched(dataset):
        dataset = dataset.batch(FETCH_ROWS)
    yield from dataset.as_numpy_iterator()


def is_batched(dataset: Any) -> bool:
    """Whether the last step that forms elements is a batch; prefetching and options after it do not count."""
    while dataset is not None:
        name = type(dataset).__name__
        if "Batch" in name:
            return "Unbatch" not in name
        if not any(word in name for word in ("Prefetch", "Options", "Repeat", "Take", "Skip", "Cache")):
            return False
        dataset = getattr(dataset, "_input_dataset", None)
    return False
