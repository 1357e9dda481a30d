"""torch Datasets and DataLoaders. Their rows are Python objects of the user; each is fetched once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.adapters.batches import BatchesAdapter
from orca.shards.tree import tree_map

FETCH_ROWS = 1024


class TorchAdapter(BatchesAdapter):
    """A torch Dataset or DataLoader."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.batch_size = getattr(data, "batch_size", None)

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("torch.utils.data") and base.__name__ in ("DataLoader", "Dataset")
            for base in type(data).__mro__
        )

    def batches(self) -> Iterator[Any]:
        return batches(self.data)

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        return not several_inputs


def batches(source: Any) -> Iterator[Any]:
    """Yield the source's rows as batches of arrays, in order and without its own shuffling."""
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, default_convert

    loads = isinstance(source, DataLoader)
    dataset = source.dataset if loads else source
    collate = source.collate_fn if loads else default_collate
    if loads and not isinstance(dataset, IterableDataset):
        _check_order(source)
    # A subclass may change rows as they are fetched.
    if type(dataset) is TensorDataset and collate in (default_collate, default_convert):
        # Already columns: rows need not be taken apart and joined again.
        yield tuple(tensor.detach().cpu().numpy() for tensor in dataset.tensors)
        return
    if loads and isinstance(dataset, IterableDataset):
        loader = source
    else:
        # With batch_size=None the data set yields batches already.
        size = None if loads and source.batch_sampler is None else FETCH_ROWS
        loader = DataLoader(dataset, batch_size=size, shuffle=False, collate_fn=collate)
    for batch in loader:
        yield tree_map(_array, batch)


def _check_order(loader: Any) -> None:
    """Raise if a loader selects or repeats rows: only the rows of its data set are read."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    groups = loader.batch_sampler
    known = groups is None or type(groups) is BatchSampler
    sampler = groups if not known else loader.sampler if groups is None else groups.sampler
    known = known and type(sampler) in (SequentialSampler, RandomSampler) and len(sampler) == len(loader.dataset)
    repeats = getattr(sampler, "replacement", False)
    if not known or repeats:
        raise DataError(
            f"The DataLoader has a {type(sampler).__name__}{' with replacement' if repeats else ''}, which Orca would "
            "ignore: Orca shuffles by itself. Give the rows you want as a torch.utils.data.Subset."
        )


def _array(leaf: Any) -> Any:
    if hasattr(leaf, "detach"):
        return leaf.detach().cpu().numpy()
    array = np.asarray(leaf)
    if array.dtype == object:
        raise DataError(f"The dataset yields a {type(leaf).__name__}; expected tensors, arrays or numbers.")
    return array
