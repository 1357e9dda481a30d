"""Rows of torch Datasets on the rank that needs them: fetched by torch's DataLoader, with seeds of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.adapters.arrays import to_tree
from orca.shards.adapters.base import Checks, Form
from orca.shards.adapters.batches import labelled
from orca.shards.on_rank import RankSource
from orca.shards.orders import Batches, Index, Order
from orca.shards.randomness import OwnRandomness, seed_all
from orca.shards.tree import Tree, tensor_to_numpy, tree_map

Ticket = tuple[int, int, int]
"""Seed, epoch and number of a row."""


@dataclass(frozen=True)
class Loading:
    """The settings of a DataLoader that Orca follows."""

    collate: Callable[[list[Any]], Any]
    num_workers: int = 0
    prefetch_factor: int | None = None
    worker_init_fn: Callable[[int], None] | None = None
    timeout: float = 0


class TorchSource(RankSource):
    """A map-style Dataset, with the settings of its DataLoader."""

    def __init__(self, dataset: Any, loading: Loading, form: Form, sampler: Iterable[int] | None = None) -> None:
        self._dataset, self._loading, self._sampler = dataset, loading, sampler
        # The model's own checks run on the rank, which has the model.
        self._form = replace(form, labels=None, weights=None, checks=Checks())
        self._loader: Any = None
        self._tickets = _Tickets()

    def __len__(self) -> int:
        return len(self._dataset if self._sampler is None else self._sampler)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None, "_tickets": _Tickets()}

    def order(self, shuffle: bool | str, batch_size: int) -> Order:
        if self._sampler is None:
            return super().order(shuffle, batch_size)
        return _Sampled(len(self), batch_size, self._sampler)

    def fetch(self, groups: Iterable[Index], seed: int, epoch: int) -> Iterator[Tree]:
        import torch
        from torch.utils.data import DataLoader

        loading = self._loading
        if self._loader is None:
            several = loading.num_workers > 0
            self._loader = DataLoader(
                _SeededRows(self._dataset),
                batch_sampler=self._tickets,
                collate_fn=loading.collate,
                num_workers=loading.num_workers,
                prefetch_factor=loading.prefetch_factor if several else None,
                persistent_workers=several,
                worker_init_fn=loading.worker_init_fn,
                timeout=loading.timeout,
                generator=torch.Generator(),  # else it would draw from the random numbers of the training
            )
        self._tickets.groups = ([(seed, epoch, int(row)) for row in group] for group in groups)
        batches = iter(self._loader)
        while True:
            # In this process the rows' seeds must not change the random numbers of the training.
            with OwnRandomness(seed, epoch) if not loading.num_workers else nullcontext():
                batch = next(batches, None)
            if batch is None:
                return
            yield to_tree(labelled(tree_map(as_array, batch), self._form), self._form)

    def close(self) -> None:
        self._loader = None


class _Tickets:
    """The batch sampler of the loader: the rows of the current epoch, group by group."""

    groups: Iterator[list[Ticket]] = iter(())

    def __iter__(self) -> Iterator[list[Ticket]]:
        return self.groups

    def __getstate__(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class _SeededRows:
    """A Dataset whose rows are random by seed, epoch and row alone, whoever fetches them and in whatever order."""

    dataset: Any

    def __getitem__(self, ticket: Ticket) -> Any:
        seed_all(*ticket)
        return self.dataset[ticket[2]]

    def __getitems__(self, tickets: Sequence[Ticket]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            # Fetched together, so seeded together.
            seed_all(*tickets[0])
            return list(self.dataset.__getitems__([row for _, _, row in tickets]))
        return [self[ticket] for ticket in tickets]


@dataclass(frozen=True)
class _Sampled(Batches):
    """The order of a sampler, drawn in every epoch with the same random numbers on every rank."""

    sampler: Iterable[int]

    def rows(self, seed: int, epoch: int) -> Index:
        with OwnRandomness(seed, epoch, 0):
            return np.fromiter(self.sampler, np.int64, self.count)


def as_array(leaf: Any) -> Any:
    """Return a part of a row as an array."""
    if hasattr(leaf, "detach"):
        return tensor_to_numpy(leaf, "A tensor of the dataset")
    array = np.asarray(leaf)
    if array.dtype == object:
        raise DataError(f"The dataset yields a {type(leaf).__name__}; expected tensors, arrays or numbers.")
    return array
