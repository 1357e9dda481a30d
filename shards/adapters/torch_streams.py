"""torch IterableDatasets, and loaders whose data set yields batches, read on every rank in their own order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from orca.shards.adapters.base import Form
from orca.shards.adapters.iterables import own_shard
from orca.shards.adapters.torch_loading import as_array
from orca.shards.adapters.trees import Trees
from orca.shards.on_rank import Reader
from orca.shards.randomness import seed_all, seeded
from orca.shards.streams import StreamSource
from orca.shards.tree import Tree, tree_map


class TorchStream(StreamSource):
    """An IterableDataset, or what a DataLoader makes of one; each pass begins a new iteration.

    A data set with a method ``shard(rank, world)`` yields the rank's own rows. Any other one is read on every rank,
    which takes its share of the rows.
    """

    def __init__(self, data: Any, form: Form) -> None:
        from torch.utils.data import DataLoader, IterableDataset

        self._loading = _Loading.of(data) if isinstance(data, DataLoader) else None
        self._dataset = data if self._loading is None else data.dataset
        self._trees = Trees(form)
        self.whole = not (isinstance(self._dataset, IterableDataset) and hasattr(self._dataset, "shard"))

    def stream(self, reader: Reader, number: int, size: int) -> Iterator[Tree]:
        dataset = self._dataset if self.whole else own_shard(self._dataset, reader)
        loading, key = self._loading, (reader.seed, number)
        if loading is None:
            batches = seeded(lambda: _collated(dataset, size), *key)
        elif loading.options["num_workers"]:
            batches = iter(loading.loader(dataset, key))
        else:
            batches = seeded(lambda: iter(loading.loader(dataset, key)), *key)
        return self._trees(tree_map(as_array, batch) for batch in batches)


@dataclass(frozen=True)
class _Loading:
    """The settings of a DataLoader for streams."""

    options: dict[str, Any]
    worker_init_fn: Callable[[int], None] | None

    @classmethod
    def of(cls, loader: Any) -> _Loading:
        from torch.utils.data import IterableDataset

        names = ("collate_fn", "num_workers", "prefetch_factor", "timeout")
        options = {name: getattr(loader, name) for name in names}
        if isinstance(loader.dataset, IterableDataset):
            options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        else:  # the data set yields batches
            options |= {"batch_size": None, "sampler": loader.sampler}
        return cls(options, loader.worker_init_fn)

    def loader(self, dataset: Any, key: tuple[int, int]) -> Any:
        """Return a loader for one pass."""
        import torch
        from torch.utils.data import DataLoader

        start = _Start(key, self.worker_init_fn) if self.options["num_workers"] else None
        # Without a generator of its own it would draw from the random numbers of the training.
        return DataLoader(dataset, **self.options, worker_init_fn=start, generator=torch.Generator())


@dataclass(frozen=True)
class _Start:
    """Begins the work of a loader's process: its random numbers depend on the pass and on its own number."""

    key: tuple[int, int]
    user: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        seed_all(*self.key, worker)
        if self.user is not None:
            self.user(worker)


def _collated(dataset: Any, size: int) -> Iterator[Any]:
    """Yield the rows of a data set, collated as a DataLoader does."""
    from torch.utils.data import default_collate

    rows = iter(dataset)
    while chunk := list(itertools.islice(rows, size)):
        yield default_collate(chunk)
