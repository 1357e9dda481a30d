"""torch Datasets and DataLoaders: sent to the ranks for training, read in this process for predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orca.errors import DataError
from orca.shards.adapters.base import Form
from orca.shards.adapters.batches import BatchesAdapter, weight_refused
from orca.shards.adapters.torch_loading import Loading, TorchSource, as_array
from orca.shards.adapters.torch_streams import TorchStream
from orca.shards.on_rank import RankSource, Source
from orca.shards.tree import tree_map

FETCH_ROWS = 1024


class TorchAdapter(BatchesAdapter):
    """A torch Dataset or DataLoader."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.batch_size = getattr(data, "batch_size", None)
        self.ends = not _is_stream(data)

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("torch.utils.data") and base.__name__ in ("DataLoader", "Dataset")
            for base in type(data).__mro__
        )

    def batches(self, rows: int | None = None) -> Iterator[Any]:
        return batches(self.data, rows)

    def source(self, form: Form) -> Source | None:
        source = rank_source(self.data, form)
        if source is not None:
            weight_refused(self.data, form)
        if isinstance(source, RankSource) and not len(source):
            raise DataError(f"{form.argument}= gave no rows.")
        return source

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        return not several_inputs


def rank_source(data: Any, form: Form) -> TorchSource | TorchStream | None:
    """Return the data as a source of the ranks; None for a TensorDataset, whose rows are arrays already."""
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        IterableDataset,
        RandomSampler,
        SequentialSampler,
        TensorDataset,
        default_collate,
    )

    loads = isinstance(data, DataLoader)
    dataset = data.dataset if loads else data
    if isinstance(dataset, IterableDataset):
        return TorchStream(data, form)
    if type(dataset) is TensorDataset:
        return None
    if not loads:
        return TorchSource(dataset, Loading(default_collate), form)
    groups = data.batch_sampler
    if groups is None:  # the dataset yields batches
        return TorchStream(data, form)
    if type(groups) is not BatchSampler:
        _check_order(data)
    loading = Loading(data.collate_fn, data.num_workers, data.prefetch_factor, data.worker_init_fn, data.timeout)
    plain = type(groups.sampler) in (SequentialSampler, RandomSampler) and len(groups.sampler) == len(dataset)
    plain = plain and not getattr(groups.sampler, "replacement", False)
    return TorchSource(dataset, loading, form, None if plain else groups.sampler)


def _is_stream(source: Any) -> bool:
    """Whether this is an IterableDataset, or loads one, that does not tell its length."""
    dataset = getattr(source, "dataset", source)
    if not any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__):
        return False
    try:
        len(dataset)
    except (TypeError, NotImplementedError):
        return True
    return False


def batches(source: Any, rows: int | None = None) -> Iterator[Any]:
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
        yield tuple(as_array(tensor) for tensor in dataset.tensors)
        return
    if loads and isinstance(dataset, IterableDataset):
        loader = source
    else:
        # With batch_size=None the data set yields batches already.
        size = None if loads and source.batch_sampler is None else min(FETCH_ROWS, rows or FETCH_ROWS)
        loader = DataLoader(dataset, batch_size=size, shuffle=False, collate_fn=collate)
    for batch in loader:
        yield tree_map(as_array, batch)


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
