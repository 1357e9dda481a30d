"""torch Datasets and DataLoaders as arrays. Their rows are Python objects of the user; each is fetched once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.tree import tree_map

FETCH_ROWS = 1024


def batches(source: Any) -> Iterator[Any]:
    """Yield the source's rows as batches of arrays, in order and without its own shuffling."""
    from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

    dataset = source.dataset if isinstance(source, DataLoader) else source
    if isinstance(source, DataLoader) and not isinstance(dataset, IterableDataset):
        if not isinstance(source.sampler, SequentialSampler | RandomSampler) or len(source.sampler) != len(dataset):
            raise DataError(
                f"The DataLoader has a {type(source.sampler).__name__}, which Orca would ignore: it draws the order "
                "itself. Give the rows you want as a torch.utils.data.Subset."
            )
    if isinstance(dataset, TensorDataset):
        # Already columns: no need to take rows apart and put them together again.
        yield tuple(tensor.detach().cpu().numpy() for tensor in dataset.tensors)
        return
    collate = source.collate_fn if isinstance(source, DataLoader) else None
    if isinstance(source, DataLoader) and isinstance(dataset, IterableDataset):
        loader = source
    else:
        loader = DataLoader(dataset, batch_size=FETCH_ROWS, shuffle=False, collate_fn=collate)
    for batch in loader:
        yield tree_map(_array, batch)


def _array(leaf: Any) -> Any:
    if hasattr(leaf, "detach"):
        return leaf.detach().cpu().numpy()
    array = np.asarray(leaf)
    if array.dtype == object:
        raise DataError(f"The dataset gives a {type(leaf).__name__}; expected tensors, arrays or numbers.")
    return array
