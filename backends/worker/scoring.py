"""Evaluation on a rank, also for the validation of fit, for any framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from orca.backends.base import Replica, Seat
from orca.backends.worker.job import Job, replica_of
from orca.backends.worker.labels import check_labels, check_part
from orca.backends.worker.tally import Tally
from orca.errors import DataError
from orca.shards.feed import Rows
from orca.shards.on_rank import FetchedRows
from orca.shards.orders import ScoredRows, share
from orca.shards.tree import row_count

if TYPE_CHECKING:
    from orca.launch.base import Needs
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


def open_rows(context: RankContext, name: str, needs: Needs, seat: Seat) -> Rows:
    """Open the rows of a source that this rank needs, and agree with the other ranks on their dtypes."""
    handles = context.sources[name]
    count = sum(handle.rows for handle in handles)
    rows = Rows(handles, *needs(count, seat.rank) if seat.rank is not None else (0, 0))
    signatures = context.allgather(rows.signature() if rows.is_partial else None)
    if any(signature is not None for signature in signatures):
        rows.agree([signature for signature in signatures if signature])
    return rows


def score(
    context: RankContext,
    replica: Replica,
    rows: Rows | FetchedRows,
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
    count = len(rows) if steps is None else min(len(rows), steps * batch_size)
    if isinstance(rows, Rows):
        replica.expect_classes(check_labels(replica, rows, *_own_part(seat, count)))
    for part in chunks(rows, seat, max(1, batch_size // seat.world), count):
        if not isinstance(rows, Rows):
            replica.expect_classes(check_part(replica, part))
        tally.add(replica.evaluate_step(part, bool(metrics)), row_count(part))
    return tally.merged(context, prefix)


def chunks(rows: Rows | FetchedRows, seat: Seat, size: int, count: int) -> Iterator[Any]:
    """Yield this rank's even share of the first `count` rows, piece by piece."""
    start, stop = _own_part(seat, count)
    if isinstance(rows, FetchedRows):
        yield from rows.pieces(start, stop, size) if start < stop else ()
        return
    for low in range(start, stop, size):
        yield rows.slice(low, min(low + size, stop))


def _own_part(seat: Seat, count: int) -> tuple[int, int]:
    return share(count, seat.rank, seat.world) if seat.rank is not None else (0, 0)


def fetched_rows(context: RankContext, name: str, seed: int) -> FetchedRows:
    """Open a source whose rows are produced here."""
    return FetchedRows(context.sources[name][0].load(), seed)


def evaluate_on_rank(context: RankContext, job: Job, batch_size: int, fetched: bool) -> dict[str, float]:
    """Score all rows of the source; every rank returns the same exact result.

    With `fetched` the rows are produced on the ranks.
    """
    replica = replica_of(context, job)
    seat = replica.seat(context.place)
    rows: Rows | FetchedRows
    if fetched:
        rows = fetched_rows(context, "data", job.seed)
    else:
        rows = open_rows(context, "data", ScoredRows(seat.world), seat)
    if not len(rows):
        raise DataError("There is no row to evaluate: all shards are empty.")
    with closing(rows):
        return score(context, replica, rows, batch_size, job.metrics, "")
