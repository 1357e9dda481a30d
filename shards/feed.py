"""The feed: turns a list of shards into the batches of one rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.on_rank import FetchedRows, Source
from orca.shards.orders import Step, order_of
from orca.shards.tree import leaves, refuse_masks, row_count, size_in_bytes, take_rows, tree_map

Signature = Mapping[str, tuple[tuple[int, ...], str]]
"""The shape of a row and the dtype, by the name of each array."""


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
    to take part in the collectives: it gets some rows with ``filler=True``, to be computed with weight zero.
    """

    data: Any
    rows: int
    total: int
    filler: bool = False
    least: int = 1
    """Rows of the smallest share of the step; the same on every rank."""


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
    """The shards of a source, with rows numbered consecutively from 0; only those that hold wanted rows are opened."""

    def __init__(self, handles: Sequence[Any], start: int = 0, stop: int | None = None) -> None:
        sizes = [handle.rows for handle in handles]
        starts = list(itertools.accumulate(sizes, initial=0))
        self._count: int = starts[-1]
        self.is_partial = start > 0 or (stop is not None and stop < self._count)
        """Whether rows before `start` or from `stop` on are left out."""
        stop = self._count if stop is None else stop
        wanted = [i for i, size in enumerate(sizes) if size and starts[i] < stop and starts[i] + size > start]
        self._shards = [handles[i].load() for i in wanted]
        for shard in self._shards:
            refuse_masks(shard)
        self._sizes = [sizes[i] for i in wanted]
        self._starts = np.array([starts[i] for i in wanted] + [starts[wanted[-1] + 1] if wanted else 0])
        self._handles = handles
        self._types: dict[str, np.dtype[Any]] = {}
        _check_alike(self._shards, wanted)

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> int:
        """The number of the first row that this rank has."""
        return int(self._starts[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the opened shards."""
        return sum(size_in_bytes(shard) for shard in self._shards)

    def close(self) -> None:
        """Do nothing: shards are closed with their last use."""

    def signature(self) -> Signature:
        """Describe the rows: entries, shapes and the dtypes to which those of several shards combine."""
        forms = [dict(leaves(shard)) for shard in self._shards]
        return {
            name: (leaf.shape[1:], np.result_type(*(form[name].dtype for form in forms)).str)
            for name, leaf in (forms[0].items() if forms else ())
        }

    def agree(self, signatures: Sequence[Signature]) -> None:
        """Combine the dtypes of the shards that different ranks have opened; raise if their rows differ in shape."""
        described = [signature for signature in signatures if signature]
        shapes = [{name: shape for name, (shape, _) in signature.items()} for signature in described]
        for other in shapes:
            if other != shapes[0]:
                raise DataError(f"Some shards have rows of {shapes[0]}, others of {other}. Make all shards alike.")
        names = described[0] if described else ()
        self._types = {name: np.result_type(*(signature[name][1] for signature in described)) for name in names}

    def views(self, start: int, stop: int) -> list[Any]:
        """Return consecutive rows as views, one of each shard that holds some of them."""
        first = int(self._starts[0]) if len(self._shards) else 0
        parts = cut(self._sizes, start - first, stop - first)
        return [self._cast(take_rows(self._shards[part.shard], part.start, part.stop)) for part in parts]

    def slice(self, start: int, stop: int) -> Any:
        """Return consecutive rows: a view within one shard, one copy across shards."""
        parts = self.views(start, stop)
        if not parts:
            return take_rows(self._shards[0] if self._shards else self._handles[0].load(), 0, 0)
        return parts[0] if len(parts) == 1 else tree_map(lambda *leaves: np.concatenate(leaves), *parts)

    def take(self, index: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        """Gather rows by number, with one copy."""
        if len(self._shards) == 1:
            places = index - self._starts[0] if self._starts[0] else index
            return self._cast(tree_map(lambda leaf: leaf.take(places, axis=0), self._shards[0]))
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

        return self._cast(tree_map(gather, *self._shards))

    def _cast(self, data: Any) -> Any:
        """Convert rows to the dtypes on which the ranks have agreed, where they differ."""
        if not self._types or all(leaf.dtype == self._types[name] for name, leaf in leaves(data)):
            return data
        types = iter(self._types[name] for name, _ in leaves(data))
        return tree_map(lambda leaf: leaf.astype(next(types), copy=False), data)


def _check_alike(shards: list[Any], numbers: Sequence[int]) -> None:
    """Raise if shards differ in their entries or row shapes; dtypes may differ."""
    expected = {name: leaf.shape[1:] for name, leaf in leaves(shards[0])} if shards else {}
    for shard, number in zip(shards, numbers, strict=True):
        shapes = {name: leaf.shape[1:] for name, leaf in leaves(shard)}
        if shapes != expected:
            raise DataError(
                f"Shard {number} has rows of {shapes}, shard {numbers[0]} of {expected}. Make all shards alike."
            )


class Feed:
    """The batches of one rank, epoch by epoch.

    >>> import numpy as np
    >>> feed = Feed(Rows([InMemory(np.arange(10))]), rank=0, world=2, batch_size=4, shuffle=False)
    >>> [batch.data.tolist() for batch in feed.epoch(0)]
    [[0, 1], [4, 5], [8, 9]]
    """

    def __init__(
        self,
        rows: Rows | FetchedRows,
        *,
        rank: int,
        world: int,
        batch_size: int,
        seed: int = 0,
        shuffle: bool | str = True,
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        if isinstance(rows, FetchedRows):
            self.order = rows.source.order(shuffle, batch_size)
        else:
            self.order = order_of(shuffle, len(rows), batch_size)
        self._rank, self._world, self._seed = rank, world, seed

    @property
    def steps(self) -> int | None:
        """Number of steps of one epoch; the same on every rank."""
        return self.order.steps

    @property
    def count(self) -> int:
        """Number of rows of one epoch, on all ranks together."""
        return len(self.rows)

    def rows_until(self, step: int) -> int:
        """Return how many rows the first steps of an epoch have, on all ranks together."""
        return min(step * self.batch_size, self.count)

    def close(self) -> None:
        """End what reading has started."""
        self.rows.close()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, starting at `first_step`."""
        steps = self.order.epoch(self._seed, epoch, self._rank, self._world, first_step)
        if isinstance(self.rows, Rows):
            pairs: Iterator[tuple[Step, Any]] = ((step, self._read(self.rows, step)) for step in steps)
        else:
            steps, ahead = itertools.tee(steps)
            indices = (step.index() if step.count else None for step in ahead)
            pairs = zip(steps, self.rows.steps(indices, epoch), strict=True)
        for step, data in pairs:
            yield Batch(data, step.count, step.total, not step.count, step.least)

    def _read(self, rows: Rows, step: Step) -> Any:
        if not step.count:
            return rows.slice(*self.order.filler(self._rank, self._world))
        return rows.slice(step.rows.start, step.rows.stop) if isinstance(step.rows, slice) else rows.take(step.rows)


class InMemory:
    """Data that is already in this process, as a handle."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.rows = 1 if isinstance(data, Source) else row_count(data)

    def load(self) -> Any:
        return self._data
