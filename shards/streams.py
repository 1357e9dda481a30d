"""Rows that come one after another on the ranks: data sets without numbered rows, and how a rank takes its share.

Nobody knows in advance where a stream ends, and the streams of different ranks may end at different steps. The ranks
therefore agree, a few steps ahead, on how many rows each of them has: no rank waits for one that has ended.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from orca.errors import DataError
from orca.shards.feed import Batch
from orca.shards.on_rank import SCORING_EPOCH, Reader, Source
from orca.shards.orders import share, sharing_ranks
from orca.shards.tree import Tree, describe, join_rows, row_count, size_in_bytes, take_rows

MOST_STEPS_AHEAD = 16
_BYTES_AHEAD = 32 << 20
"""What a rank reads ahead at most, unless a single step has more."""
_FILLER_ROWS = 2


class StreamSource(Source):
    """A data set whose rows come in its own order."""

    whole: bool = True
    """Whether every rank's stream has all rows, of which each rank takes its share; else only the rank's own."""

    def open(self, reader: Reader) -> StreamRows:
        return StreamRows(self, reader)

    @abstractmethod
    def stream(self, reader: Reader, number: int, size: int) -> Iterator[Tree]:
        """Yield the rows {"x", "y"} of one pass over the data, some at a time.

        Args:
            reader: The rank that reads. What is random in a pass depends on its seed and on `number` alone.
            number: The number of the pass, counted from 0.
            size: How many rows are used at a time; the stream may yield more or fewer.
        """

    def close(self) -> None:
        """End what `stream` has started."""


@dataclass(frozen=True)
class _Part:
    """This rank's rows of a step, and some rows of the step, perhaps of another rank."""

    data: Tree
    rows: int
    spare: Tree


class StreamRows:
    """The rows of a stream, as one rank reads them."""

    nbytes = 0

    def __init__(self, source: StreamSource, reader: Reader) -> None:
        self.source, self.reader = source, reader

    def parts(self, number: int, batch_size: int, limit: int | None = None) -> Iterator[_Part]:
        """Yield this rank's rows of one step of a pass after another; with `limit`, of the first rows only."""
        source, rank, world = self.source, self.reader.rank, self.reader.world
        low, high = share(batch_size, rank, world)
        size = batch_size if source.whole else high - low
        if limit is not None and not source.whole:
            low, high = share(limit, rank, world)
            limit = high - low
        with closing(source.stream(self.reader, number, size)) as trees:  # type: ignore[type-var]
            for tree in recut(trees if limit is None else first_of(trees, limit), size):
                rows = row_count(tree)
                if world == 1 or not source.whole:
                    yield _Part(tree, rows, tree)
                    continue
                ranks = sharing_ranks(rows, batch_size, world)
                low, high = share(rows, rank, ranks) if rank < ranks else (0, 0)
                yield _Part(take_rows(tree, low, high), high - low, take_rows(tree, 0, _FILLER_ROWS))

    def pieces(self, size: int, limit: int | None) -> Iterator[Tree]:
        """Yield this rank's share of all rows, or of the first `limit`, for an evaluation; `size` rows at a time."""
        parts = self.parts(SCORING_EPOCH, size * self.reader.world, limit)
        return (part.data for part in parts if part.rows)

    def close(self) -> None:
        """End what reading has started, such as loader processes."""
        self.source.close()


class StreamFeed:
    """The batches of one rank from a stream, epoch by epoch.

    An epoch is one pass over the data. With `steps_per_epoch` an epoch has the next steps of the stream instead, which
    begins again where it ends.

    Args:
        rows: The stream.
        batch_size: Rows of a step, on all ranks together.
        steps_per_epoch: Steps of an epoch.
        first_epoch: The epoch in which the run began; passes are numbered from there.
    """

    count = 0
    left: int | None = None
    """Steps that the run can still use; nothing is read for further ones."""

    def __init__(
        self,
        rows: StreamRows,
        *,
        batch_size: int,
        steps_per_epoch: int | None = None,
        first_epoch: int = 0,
    ) -> None:
        self.rows, self.batch_size = rows, batch_size
        self._steps_per_epoch, self._first_epoch = steps_per_epoch, first_epoch
        self._budget: int | None = None
        self._endless: Iterator[Batch] | None = None
        self._upcoming = first_epoch
        self._passed = [0]
        self.steps: int | None = steps_per_epoch
        """Number of steps of the current epoch; None until its last step is reached."""

    def rows_until(self, step: int) -> int:
        """Return how many rows the first steps of the current epoch have, on all ranks together."""
        return self._passed[min(step, len(self._passed) - 1)]

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, starting at `first_step`."""
        limit = self._steps_per_epoch
        self.steps, self._passed = limit, [0]
        skipped = 0
        if limit is None:
            batches = self._pass(epoch)
        else:
            if self._endless is None or epoch != self._upcoming:
                self._endless, skipped = self._passes(), (epoch - self._first_epoch) * limit
            batches, self._upcoming = self._endless, epoch + 1
        self._budget = None if self.left is None else self.left + skipped + first_step
        for _ in itertools.islice(batches, skipped):
            pass
        last: Batch | None = None
        for batch in itertools.islice(batches, limit):
            if last is not None:
                yield last
            self._passed.append(self._passed[-1] + batch.total)
            last = batch if len(self._passed) > first_step + 1 else None
        # One batch is held back, so that its receiver knows that it is the last one.
        if self._budget is None or self._budget > 0:
            self.steps = len(self._passed) - 1
        if last is not None:
            yield last

    def close(self) -> None:
        """End what reading has started."""
        if self._endless is not None:
            self._endless.close()  # type: ignore[attr-defined]
        self.rows.close()

    def _passes(self) -> Iterator[Batch]:
        """Yield the batches of one pass after another, until one has no rows."""
        for number in itertools.count(self._first_epoch):
            with closing(self._pass(number)) as batches:  # type: ignore[type-var]
                first = next(batches, None)
                if first is None:
                    return
                yield first
                yield from batches

    def _pass(self, number: int) -> Iterator[Batch]:
        return self._agreed(number) if self.rows.reader.world > 1 else self._alone(number)

    def _alone(self, number: int) -> Iterator[Batch]:
        """Yield the batches of a pass that no other rank takes part in."""
        with closing(self.rows.parts(number, self.batch_size)) as parts:  # type: ignore[type-var]
            while self._budget is None or self._budget > 0:
                part = next(parts, None)
                if part is None:
                    return
                if self._budget is not None:
                    self._budget -= 1
                yield Batch(part.data, part.rows, part.rows, False, part.rows)

    def _agreed(self, number: int) -> Iterator[Batch]:
        """Yield the batches of a pass, after agreeing with the other ranks on how many rows each has."""
        reader = self.rows.reader
        ahead: deque[_Part] = deque()
        wanted, size = 1, 1
        spare: Tree = None
        with closing(self.rows.parts(number, self.batch_size)) as parts:  # type: ignore[type-var]
            while self._budget is None or self._budget > 0:
                ahead.extend(itertools.islice(parts, max(0, wanted - len(ahead))))
                size = max([size, *(size_in_bytes(part.data) for part in ahead)])
                surveys = reader.exchange(([part.rows for part in itertools.islice(ahead, wanted)], size))
                counts, sizes = zip(*surveys, strict=True)
                steps = max(map(len, counts))
                if not steps:
                    return
                if spare is None:
                    spare = self._first_spare(counts, ahead[0].spare if ahead else None)
                following = self._following(wanted, steps, max(sizes))
                for step in range(steps):
                    shares = [own[step] if step < len(own) else 0 for own in counts]
                    part = ahead.popleft() if step < len(counts[reader.rank]) else None
                    spare = spare if part is None else part.spare
                    # One step is read for each that is used, so that loader processes and the training overlap.
                    ahead.extend(itertools.islice(parts, min(2, max(0, following - len(ahead)))))
                    yield _batch(part, spare, shares)
                if steps < wanted:
                    return
                wanted = following

    def _following(self, wanted: int, steps: int, size: int) -> int:
        """Return how many steps the ranks agree on next: more and more, as far as memory and the run allow."""
        following = min(2 * wanted, MOST_STEPS_AHEAD, max(1, _BYTES_AHEAD // size))
        if self._budget is not None:
            self._budget -= steps
            following = min(following, max(0, self._budget))
        return following

    def _first_spare(self, counts: Sequence[Sequence[int]], spare: Tree) -> Tree:
        """Return rows for steps in which this rank has none; those of another rank if its stream is empty."""
        if all(counts):
            return spare
        spares = self.rows.reader.exchange(None if spare is None else take_rows(spare, 0, _FILLER_ROWS))
        return spare if spare is not None else next(other for other in spares if other is not None)


class IdleFeed:
    """The feed of a rank that only serves others: it has no rows, and takes over how many the others have had."""

    steps: int | None = None
    count = 0
    passed = 0

    def rows_until(self, step: int) -> int:
        """Return how many rows the other ranks have had in the current epoch; none before the first step."""
        return self.passed if step else 0

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield nothing."""
        return iter(())

    def close(self) -> None:
        """Do nothing."""


def _batch(part: _Part | None, spare: Tree, shares: Sequence[int]) -> Batch:
    least = min((own for own in shares if own), default=1)
    if part is None or not part.rows:
        return Batch(spare, 0, sum(shares), True, least)
    return Batch(part.data, part.rows, sum(shares), False, least)


def first_of(trees: Iterator[Tree], rows: int) -> Iterator[Tree]:
    """Yield the first rows only."""
    while rows > 0 and (tree := next(trees, None)) is not None:
        count = row_count(tree)
        yield tree if count <= rows else take_rows(tree, 0, rows)
        rows -= count


def recut(trees: Iterator[Tree], size: int) -> Iterator[Tree]:
    """Yield the same rows, `size` at a time; the last ones may be fewer.

    >>> import numpy as np
    >>> [rows.tolist() for rows in recut(iter([np.arange(2), np.arange(2, 7)]), 3)]
    [[0, 1, 2], [3, 4, 5], [6]]
    """
    pending: list[Tree] = []
    count = 0
    for tree in trees:
        rows = row_count(tree)
        if not rows:
            continue
        start = 0
        while count + rows - start >= size:
            stop = start + size - count
            pending.append(tree if not start and stop == rows else take_rows(tree, start, stop))
            yield _joined(pending)
            pending, count, start = [], 0, stop
        if start < rows:
            pending.append(take_rows(tree, start, rows))
            count += rows - start
    if pending:
        yield _joined(pending)


def _joined(trees: list[Tree]) -> Tree:
    try:
        return join_rows(trees)
    except (ValueError, KeyError) as error:
        shapes = " and ".join(str(describe(tree)) for tree in (trees[0], trees[-1]))
        raise DataError(f"The data set yields rows of different shapes, such as {shapes}. Make them alike.") from error
