"""Evaluation on a rank, also for the validation of fit, for any framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orca.backends.base import Replica, Seat
from orca.backends.worker.job import Job, replica_of
from orca.backends.worker.tally import Tally
from orca.errors import DataError
from orca.shards.feed import Rows, share
from orca.shards.tree import row_count

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


def score(
    context: RankContext,
    replica: Replica,
    rows: Rows,
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
    for part in chunks(rows, seat, max(1, batch_size // seat.world), count):
        tally.add(replica.evaluate_step(part, bool(metrics)), row_count(part))
    return tally.merged(context, prefix)


def chunks(rows: Rows, seat: Seat, size: int, count: int) -> Iterator[Any]:
    """Yield this rank's even share of the first `count` rows, piece by piece."""
    if seat.rank is None:
        return
    start, stop = share(count, seat.rank, seat.world)
    for low in range(start, stop, size):
        yield rows.slice(low, min(low + size, stop))


def evaluate_on_rank(context: RankContext, job: Job, batch_size: int, steps: int | None = None) -> dict[str, float]:
    """Score all rows of the source, or those of the first steps; every rank returns the same exact result."""
    replica = replica_of(context, job)
    rows = Rows(context.sources["data"])
    if not len(rows):
        raise DataError("There is no row to evaluate: all shards are empty.")
    return score(context, replica, rows, batch_size, job.metrics, "", steps)
