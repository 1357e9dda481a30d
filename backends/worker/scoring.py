"""Evaluation on a rank, also for the validation of fit, for any framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from orca.backends.base import Replica, Seat
from orca.backends.worker.job import Job, replica_of
from orca.backends.worker.labels import check_labels, check_part
from orca.backends.worker.opening import AnyRows, open_rows, open_source
from orca.backends.worker.tally import Tally
from orca.errors import DataError
from orca.shards.feed import Rows
from orca.shards.on_rank import FetchedRows
from orca.shards.orders import ScoredRows
from orca.shards.streams import StreamRows
from orca.shards.tree import row_count

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


def score(
    context: RankContext,
    replica: Replica,
    rows: AnyRows,
    batch_size: int,
    metrics: Sequence[Metric],
    prefix: str,
    steps: int | None = None,
) -> dict[str, float]:
    """Return loss and metrics over all rows, or those of the first steps; each rank scores an even share."""
    tally = Tally(metrics, replica.own_metrics)
    if tally.own is not None:
        tally.own.reset()
    seat = replica.seat(context.place)
    limit = None if steps is None else steps * batch_size
    if isinstance(rows, Rows):
        replica.expect_classes(check_labels(replica, rows, *_own_part(seat, len(rows), limit)))
    for part in chunks(rows, seat, max(1, batch_size // seat.world), limit):
        if not isinstance(rows, Rows):
            replica.expect_classes(check_part(replica, part))
        tally.add(replica.evaluate_step(part, bool(metrics)), row_count(part))
    return tally.merged(context, prefix, required=not isinstance(rows, Rows))


def chunks(rows: AnyRows, seat: Seat, size: int, limit: int | None) -> Iterator[Any]:
    """Yield this rank's share of all rows, or of the first `limit`, piece by piece."""
    if isinstance(rows, StreamRows):
        yield from rows.pieces(size, limit)
    elif isinstance(rows, FetchedRows):
        start, stop = _own_part(seat, len(rows), limit)
        yield from rows.pieces(start, stop, size) if start < stop else ()
    elif isinstance(rows, Rows):
        start, stop = _own_part(seat, len(rows), limit)
        for low in range(start, stop, size):
            yield rows.slice(low, min(low + size, stop))


def _own_part(seat: Seat, count: int, limit: int | None) -> tuple[int, int]:
    return ScoredRows(seat.world, limit)(count, seat.rank) if seat.rank is not None else (0, 0)


def evaluate_on_rank(context: RankContext, job: Job, batch_size: int, fetched: bool) -> dict[str, float]:
    """Score all rows of the source; every rank returns the same exact result.

    With `fetched` the rows are produced on the ranks.
    """
    replica = replica_of(context, job)
    seat = replica.seat(context.place)
    rows: AnyRows
    if fetched:
        rows = open_source(context, "data", job, seat, ends=True)
    else:
        rows = open_rows(context, "data", ScoredRows(seat.world), seat)
        if not len(rows):
            raise DataError("There is no row to evaluate: all shards are empty.")
    with closing(rows):
        return score(context, replica, rows, batch_size, job.metrics, "")
