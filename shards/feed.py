"""The feed: turns a list of shards into the batches of one rank.

Order. The global order of an epoch is a permutation of all rows drawn from (seed, epoch) alone, or the stored order
with ``shuffle=False``. Step k takes the next `batch_size` rows of it, and each rank takes an even share of those:
with n rows and w ranks the first n % w ranks take one row more. In a short last step fewer ranks may take rows, at
least two each. So neither the shards nor the number of ranks changes which rows meet in a step, and (seed, epoch,
step) is enough to resume.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.tree import leaves, row_count, size_in_bytes, take_rows, tree_map


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of one shard."""

    shard: int
    start: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """One rank's share of one step.

    `total` is the number of rows of the step across all ranks. A rank without rows in a short step still has
    to take part in the collectives: it gets the step's rows with ``filler=True``, to be computed with weight zero.
    """

    data: Any
    rows: int
    total: int
    filler: bool = False
    least: int = 1
    """Rows of the smallest share of the step; the same on every rank."""


def share(rows: int, rank: int, world: int) -> tuple[int, int]:
    """Return the rows (start, stop) of a rank's even share; the first ranks have the larger shares.

    >>> [share(5, rank, 3) for rank in range(3)]
    [(0, 2), (2, 4), (4, 5)]
    """
    quotient, rest = divmod(rows, world)
    start = rank * quotient + min(rank, rest)
    return start, start + quotient + (rank < rest)


def cut(sizes: Sequence[int], start: int, stop: int) -> list[RowRange]:
    """Find which ranges of which shards hold the global rows start..stop.

    >>> cut([3, 0, 4], 2, 5)
    [RowRange(shard=0, start=2, stop=3), RowRange(shard=2, start=0, stop=2)]
    """
    ranges = []
    offset = 0
    for index, size in enumerate(sizes):
        low, high = max(start, offset), min(stop, offset + size)
        if low < high:
            ranges.append(RowRange(index, low - offset, high - offset))
        offset += size
    return ranges


class Rows:
    """All shards of a source, opened, with rows numbered consecutively from 0."""

    def __init__(self, handles: Sequence[Any]) -> None:
        shards = [handle.load() for handle in handles]
        sizes = [row_count(shard) for shard in shards]
        self._empty = shards[0] if shards else None
        self._shards = [shard for shard, size in zip(shards, sizes, strict=True) if size]
        _check_alike(self._shards)
        self._sizes = [size for size in sizes if size]
        self._starts = np.cumsum([0, *self._sizes])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(size_in_bytes(shard) for shard in self._shards)

    def views(self, start: int, stop: int) -> list[Any]:
        """Return consecutive rows as views, one of each shard that holds some of them."""
        return [take_rows(self._shards[part.shard], part.start, part.stop) for part in cut(self._sizes, start, stop)]

    def slice(self, start: int, stop: int) -> Any:
        """Return consecutive rows: a view within one shard, one copy across shards."""
        parts = self.views(start, stop)
        if not parts:
            return take_rows(self._empty, 0, 0)
        return parts[0] if len(parts) == 1 else tree_map(lambda *leaves: np.concatenate(leaves), *parts)

    def take(self, index: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        """Gather rows by index, with one copy."""
        if len(self._shards) == 1:
            return tree_map(lambda leaf: leaf.take(index, axis=0), self._shards[0])
        order = np.argsort(index, kind="stable")
        ordered = index[order]
        borders = np.searchsorted(ordered, self._starts)
        groups = [
            (shard, order[low:high], ordered[low:high] - self._starts[shard])
            for shard, (low, high) in enumerate(itertools.pairwise(borders))
            if low < high
        ]

        def gather(*parts: Any) -> Any:
            out = np.empty((len(index), *parts[0].shape[1:]), np.result_type(*(part.dtype for part in parts)))
            for shard, positions, rows in groups:
                out[positions] = parts[shard].take(rows, axis=0)
            return out

        return tree_map(gather, *self._shards)


def _check_alike(shards: list[Any]) -> None:
    """Raise if shards differ in their entries or row shapes; dtypes may differ."""
    expected = {name: leaf.shape[1:] for name, leaf in leaves(shards[0])} if shards else {}
    for index, shard in enumerate(shards):
        shapes = {name: leaf.shape[1:] for name, leaf in leaves(shard)}
        if shapes != expected:
            raise DataError(f"Shard {index} has rows of {shapes}, shard 0 of {expected}. Make all shards alike.")


class Feed:
    """The batches of one rank, epoch by epoch.

    >>> import numpy as np
    >>> feed = Feed(Rows([InMemory(np.arange(10))]), rank=0, world=2, batch_size=4, shuffle=False)
    >>> [batch.data.tolist() for batch in feed.epoch(0)]
    [[0, 1], [4, 5], [8, 9]]
    """

    def __init__(
        self, rows: Rows, *, rank: int, world: int, batch_size: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self._rank, self._world = rank, world
        self._seed, self._shuffle = seed, shuffle

    @property
    def steps(self) -> int:
        """Number of steps of one epoch; the same on every rank."""
        return -(-len(self.rows) // self.batch_size)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, starting at `first_step`."""
        count = len(self.rows)
        order = np.random.default_rng([self._seed, epoch]).permutation(count) if self._shuffle else None
        for start in range(first_step * self.batch_size, count, self.batch_size):
            total = min(self.batch_size, count - start)
            low, high = self._share(total)
            filler = low == high
            if filler:
                low, high = 0, total
            low, high = start + low, start + high
            data = self.rows.slice(low, high) if order is None else self.rows.take(order[low:high])
            yield Batch(data, 0 if filler else high - low, total, filler, total // self._sharing(total))

    def _sharing(self, total: int) -> int:
        """Return how many ranks take rows of a step.

        In a short last step no rank gets a single row if avoidable: some layers (batch norm) cannot train on one.
        """
        return self._world if total == self.batch_size else min(self._world, max(1, total // 2))

    def _share(self, total: int) -> tuple[int, int]:
        """Return the rows (start, stop) of a step that this rank takes."""
        world = self._sharing(total)
        return share(total, self._rank, world) if self._rank < world else (0, 0)


class InMemory:
    """Data that is already in this process, as a handle."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.rows = row_count(data)

    def load(self) -> Any:
        return self._data
