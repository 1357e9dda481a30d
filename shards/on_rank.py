"""Rows that are produced on the ranks, in every epoch again: sources that travel to them, and how a rank reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from orca.shards.orders import Index, Order, order_of
from orca.shards.tree import Tree, take_rows

SCORING_EPOCH = (1 << 32) - 1
"""The epoch by which the randomness of rows for an evaluation is seeded."""
_FILLER_ROWS = 2


Exchange = Callable[[Any], Sequence[Any]]
"""Sends a small value to all ranks that read a source, and returns the values of all of them, in rank order."""


@dataclass(frozen=True)
class Reader:
    """The rank that reads a source, and what it reads it for."""

    rank: int
    world: int
    """The number of ranks that read."""
    seed: int
    exchange: Exchange = lambda value: [value]
    ends: bool = True
    """Whether only the end of the data ends the reading; else a number of steps does."""


class Source(ABC):
    """A data set that is sent to the ranks as one shard; each rank opens it and reads its rows by itself."""

    @abstractmethod
    def open(self, reader: Reader) -> Any:
        """Return the rows as this rank reads them: `FetchedRows`, `StreamRows` or `Rows`."""


class RankSource(Source):
    """A data set with numbered rows; each rank fetches its rows when it needs them."""

    def open(self, reader: Reader) -> FetchedRows:
        return FetchedRows(self, reader.seed)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows of an epoch."""

    def order(self, shuffle: bool | str, batch_size: int) -> Order:
        """Return the order of rows that `shuffle=` means for this data set."""
        return order_of(shuffle, len(self), batch_size)

    @abstractmethod
    def fetch(self, groups: Iterable[Index], seed: int, epoch: int) -> Iterator[Tree]:
        """Yield the rows {"x", "y"} of one group of row numbers after another, reading ahead where possible.

        What is random in the rows depends on the seed, the epoch and the row alone.
        """

    def close(self) -> None:
        """End what `fetch` has started."""


class FetchedRows:
    """The rows of a source that produces them on this rank."""

    is_partial = False
    nbytes = 0

    def __init__(self, source: RankSource, seed: int) -> None:
        self.source = source
        self._seed = seed

    def __len__(self) -> int:
        return len(self.source)

    def steps(self, indices: Iterable[Index | None], epoch: int) -> Iterator[Tree]:
        """Yield the rows of one step after another; for None, a step without rows, some rows that were fetched before.

        If there are none yet, the first rows are fetched for it.
        """
        empty: list[bool] = []
        first = np.arange(min(_FILLER_ROWS, len(self)))

        def groups() -> Iterator[Index]:
            fetched = False
            for index in indices:
                is_empty = index is None
                empty.append(is_empty and fetched)
                if index is None and fetched:
                    continue
                fetched = True
                yield first if index is None else index

        # The source may read ahead: `empty` runs ahead of what is yielded here.
        previous: Tree = None
        position = 0
        with closing(self.source.fetch(groups(), self._seed, epoch)) as rows:  # type: ignore[type-var]
            for data in rows:
                while empty[position]:
                    yield take_rows(previous, 0, _FILLER_ROWS)
                    position += 1
                yield data
                previous = data
                position += 1
            for _ in empty[position:]:
                yield take_rows(previous, 0, _FILLER_ROWS)

    def pieces(self, start: int, stop: int, size: int) -> Iterator[Tree]:
        """Yield consecutive rows, `size` at a time, for an evaluation."""
        groups = (np.arange(low, min(low + size, stop)) for low in range(start, stop, size))
        return self.source.fetch(groups, self._seed, SCORING_EPOCH)

    def close(self) -> None:
        """End what reading has started, such as loader processes."""
        self.source.close()


class Sendable(Protocol):
    """Shards that can be sent to ranks and freed."""

    def handles(self) -> Any:
        """Return the engine's references to the shards."""

    def free(self) -> None:
        """Release the shards."""


@dataclass(frozen=True)
class SentSource:
    """A source on its way to the ranks, as the only one of some shards."""

    shards: Sendable

    def handles(self) -> Any:
        return self.shards.handles()

    def release(self) -> None:
        self.shards.free()
