"""The order of rows in an epoch: which rows meet in a step, which rank takes which, and which rows a rank needs.

The order depends on the seed, the epoch, the batch size and the number of rows alone, never on the number of ranks or
on shards. So any number of workers sees the same rows in the same step, and (seed, epoch, step) is enough to resume.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Index = np.ndarray[Any, np.dtype[np.int64]]
_KEYS_AT_ONCE = 1 << 22
_PHILOX_BLOCK = 4
"""Numbers that one count of the Philox generator yields."""


def share(rows: int, rank: int, world: int) -> tuple[int, int]:
    """Return the rows (start, stop) of a rank's even share; the first ranks have the larger shares.

    >>> [share(5, rank, 3) for rank in range(3)]
    [(0, 2), (2, 4), (4, 5)]
    """
    quotient, rest = divmod(rows, world)
    start = rank * quotient + min(rank, rest)
    return start, start + quotient + (rank < rest)


def sharing_ranks(rows: int, batch_size: int, world: int) -> int:
    """Return how many ranks take rows of a step.

    In a short last step no rank gets a single row if avoidable: some layers (batch norm) cannot train on one.

    >>> sharing_ranks(8, 8, 4), sharing_ranks(5, 8, 4)
    (4, 2)
    """
    return world if rows == batch_size else min(world, max(1, rows // 2))


@dataclass(frozen=True)
class Step:
    """One rank's part of one step: the numbers of its rows, in order."""

    rows: slice | Index
    count: int
    total: int
    """Rows of the step over all ranks."""
    least: int
    """Rows of the smallest share of the step among ranks that have one; the same on every rank."""

    def index(self) -> Index:
        """Return the numbers of the rows as an array."""
        return np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows


@dataclass(frozen=True)
class Order(ABC):
    """The order of `count` rows in steps of `batch_size`."""

    count: int
    batch_size: int

    @property
    def steps(self) -> int:
        """Number of steps of one epoch."""
        return -(-self.count // self.batch_size)

    @abstractmethod
    def needs(self, rank: int, world: int) -> tuple[int, int]:
        """Return the rows (start, stop) that a rank may be asked for; no other rank's are needed on its host."""

    @abstractmethod
    def epoch(self, seed: int, epoch: int, rank: int, world: int, first_step: int = 0) -> Iterator[Step]:
        """Yield a rank's part of each step of an epoch; one without rows has a count of 0."""

    def filler(self, rank: int, world: int) -> tuple[int, int]:
        """Return rows for a rank that has none in a step but takes part in its collectives."""
        start, stop = self.needs(rank, world)
        return start, min(stop, start + self.batch_size)


class Lanes(Order):
    """The default order: `batch_size` lanes of consecutive rows, and in every step the next row of each lane.

    Each lane is shuffled by itself, by (seed, epoch, row). A rank has the same lanes in every step, so that it only
    needs one consecutive part of the rows.

    >>> [step.rows.tolist() for step in Lanes(6, 2).epoch(0, 0, 0, 1)]
    [[0, 3], [1, 5], [2, 4]]
    """

    def needs(self, rank: int, world: int) -> tuple[int, int]:
        low, high = self._lanes(rank, world)
        start, stop = int(self._start(low)), int(self._start(max(high, self._last_lanes(rank, world)[1])))
        # A rank without rows of its own still takes part in collectives, with rows of others.
        return (start, stop) if start < stop else (0, min(2, self.count))

    def epoch(self, seed: int, epoch: int, rank: int, world: int, first_step: int = 0) -> Iterator[Step]:
        full, rest = divmod(self.count, self.batch_size)
        low, high = self._lanes(rank, world)
        last_low, last_high = self._last_lanes(rank, world)
        long, short = self._draw(seed, epoch, low, max(high, last_high))
        starts = self._start(np.arange(low, high))
        wide = min(high, rest) - low if low < rest else 0
        for step in range(first_step, full):
            rows = np.empty(high - low, np.int64)
            rows[:wide] = long[step, :wide]
            rows[wide:] = short[step, : high - low - wide]
            yield Step(rows + starts, high - low, self.batch_size, max(1, self.batch_size // world))
        if rest and first_step <= full:
            taken = last_high - last_low
            rows = long[full, :taken] + self._start(np.arange(last_low, last_high))
            yield Step(rows, taken, rest, self._least_of_last(world))

    def _start(self, lane: Any) -> Any:
        """The first row of a lane; the first lanes have one row more if the rows do not divide evenly."""
        full, rest = divmod(self.count, self.batch_size)
        return lane * full + np.minimum(lane, rest)

    def _lanes(self, rank: int, world: int) -> tuple[int, int]:
        return share(self.batch_size, rank, world)

    def _last_lanes(self, rank: int, world: int) -> tuple[int, int]:
        """The lanes of a rank in a short last step, in which only the longer lanes have a row.

        No rank takes a single row there if its neighbor has some too: some layers (batch norm) cannot train on one.
        """
        rest = self.count % self.batch_size
        low, high = self._lanes(rank, world)
        stop = min(high, rest)
        if stop - low == 1 < high - low and rank:
            return low, low
        next_low, next_high = self._lanes(rank + 1, world) if rank + 1 < world else (high, high)
        if high == next_low and rest == next_low + 1 < next_high:
            stop = rest
        return (low, stop) if low < stop else (low, low)

    def _least_of_last(self, world: int) -> int:
        """Rows of the smallest share of a short last step."""
        lanes = (self._last_lanes(rank, world) for rank in range(world))
        return min(high - low for low, high in lanes if low < high)

    def _draw(self, seed: int, epoch: int, low: int, high: int) -> tuple[Any, Any]:
        """Draw the order within some lanes: by step and lane, the place in the lane.

        Lanes with one row more come first, in a matrix of their own.
        """
        full, rest = divmod(self.count, self.batch_size)
        middle = min(max(low, rest), high)
        long = self._shuffled(seed, epoch, low, middle, full + 1)
        return long, self._shuffled(seed, epoch, middle, high, full)

    def _shuffled(self, seed: int, epoch: int, low: int, high: int, size: int) -> Any:
        """Shuffle the places of lanes of one size, some lanes at a time."""
        out = np.empty((size, max(0, high - low)), np.int32 if size < 1 << 31 else np.int64)
        at_once = max(1, _KEYS_AT_ONCE // max(1, size))
        for first in range(low, high if size else low, at_once):
            last = min(high, first + at_once)
            keys = row_keys(seed, epoch, int(self._start(first)), (last - first) * size)
            out[:, first - low : last - low] = np.argsort(keys.reshape(-1, size), axis=1).T
        return out


def row_keys(seed: int, epoch: int, start: int, count: int) -> Any:
    """Return a random number for each of some consecutive rows: it depends on the seed, the epoch and the row."""
    key = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)
    generator = np.random.Philox(key=key)
    generator.advance(start // _PHILOX_BLOCK)
    skipped = start % _PHILOX_BLOCK
    return generator.random_raw(count + skipped)[skipped:]


class Batches(Order):
    """An order whose steps are consecutive pieces of one list of rows; each rank takes an even part of every piece."""

    def needs(self, rank: int, world: int) -> tuple[int, int]:
        return 0, self.count

    @abstractmethod
    def rows(self, seed: int, epoch: int) -> Index | None:
        """Return the list of an epoch; None for the stored order."""

    def epoch(self, seed: int, epoch: int, rank: int, world: int, first_step: int = 0) -> Iterator[Step]:
        rows = self.rows(seed, epoch)
        for start in range(first_step * self.batch_size, self.count, self.batch_size):
            total = min(self.batch_size, self.count - start)
            sharing = sharing_ranks(total, self.batch_size, world)
            low, high = share(total, rank, sharing) if rank < sharing else (0, 0)
            part = slice(start + low, start + high)
            yield Step(part if rows is None else rows[part], high - low, total, total // sharing)


class Stored(Batches):
    """The order in which the rows are stored.

    >>> [step.rows for step in Stored(5, 4).epoch(0, 0, 1, 2)]
    [slice(2, 4, None), slice(4, 4, None)]
    """

    def rows(self, seed: int, epoch: int) -> Index | None:
        return None


class Permutation(Batches):
    """A permutation of all rows, a new one for each epoch, for data that every host may hold."""

    def rows(self, seed: int, epoch: int) -> Index | None:
        return np.random.default_rng([seed, epoch]).permutation(self.count)


@dataclass(frozen=True)
class TrainingRows:
    """The rows that each rank needs for training."""

    workers: int
    """Ranks that train; others, such as parameter servers, need no rows."""
    batch_size: int
    shuffle: bool | str = True

    def __call__(self, count: int, rank: int) -> tuple[int, int]:
        if rank >= self.workers or not count:
            return 0, 0
        return order_of(self.shuffle, count, self.batch_size).needs(rank, self.workers)


@dataclass(frozen=True)
class ScoredRows:
    """The rows that each rank needs for an evaluation: an even share of all rows, or of the first `limit`."""

    workers: int
    limit: int | None = None

    def __call__(self, count: int, rank: int) -> tuple[int, int]:
        scored = count if self.limit is None else min(count, self.limit)
        return share(scored, rank, self.workers) if rank < self.workers else (0, 0)


def order_of(shuffle: bool | str, count: int, batch_size: int) -> Order:
    """Return the order that `shuffle=` means.

    >>> type(order_of("global", 5, 2)).__name__
    'Permutation'
    """
    kind = Permutation if shuffle == "global" else Lanes if shuffle else Stored
    return kind(count, batch_size)
