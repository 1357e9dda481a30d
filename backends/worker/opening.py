"""Opens the rows of a call on a rank, and feeds the training with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orca.backends.base import Seat
from orca.backends.worker.job import Job
from orca.errors import DataError
from orca.shards.feed import Feed, Rows
from orca.shards.on_rank import FetchedRows, Reader
from orca.shards.orders import TrainingRows
from orca.shards.streams import IdleFeed, StreamFeed, StreamRows

if TYPE_CHECKING:
    from orca.launch.base import Needs
    from orca.launch.rank import RankContext


def open_rows(context: RankContext, name: str, needs: Needs, seat: Seat) -> Rows:
    """Open the rows of a source that this rank needs, and agree with the other ranks on their dtypes."""
    handles = context.sources[name]
    count = sum(handle.rows for handle in handles)
    rows = Rows(handles, *needs(count, seat.rank) if seat.rank is not None else (0, 0))
    signatures = context.allgather(rows.signature() if rows.is_partial else None)
    if any(signature is not None for signature in signatures):
        rows.agree([signature for signature in signatures if signature])
    return rows


class NoRows:
    """What a rank that only serves others reads of a source that the other ranks read by themselves."""

    def close(self) -> None:
        """Do nothing."""


AnyRows = Rows | FetchedRows | StreamRows | NoRows


def open_source(context: RankContext, name: str, job: Job, seat: Seat, ends: bool) -> AnyRows:
    """Open a source that this rank reads by itself; without `ends` a number of steps ends the reading."""
    if seat.rank is None:
        return NoRows()
    reader = Reader(seat.rank, seat.world, job.seed, lambda value: context.allgather(value, seat.world), ends)
    rows: AnyRows = context.sources[name][0].load().open(reader)
    return rows


def create_feed(
    rows: AnyRows, needs: TrainingRows, seat: Seat, seed: int, steps_per_epoch: int | None, first_epoch: int
) -> Feed | StreamFeed | IdleFeed:
    """Return the feed of a run that began with `first_epoch`."""
    if isinstance(rows, NoRows):
        return IdleFeed()
    batch_size, shuffle = needs.batch_size, needs.shuffle
    if isinstance(rows, StreamRows):
        if shuffle == "global":
            raise DataError('shuffle="global" needs numbered rows; a stream keeps its own order. Leave shuffle= out.')
        return StreamFeed(rows, batch_size=batch_size, steps_per_epoch=steps_per_epoch, first_epoch=first_epoch)
    if not len(rows):
        raise DataError("There is no row to train on: all shards are empty.")
    return Feed(rows, rank=seat.rank or 0, world=seat.world, batch_size=batch_size, seed=seed, shuffle=shuffle)
