"""Where a run stands: all that a checkpoint needs besides the state to resume bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from orca.errors import DataError


@dataclass(frozen=True)
class Position:
    """The position of a run, the same on every rank."""

    epoch: int
    """Complete epochs."""
    batch: int
    """Steps done in the epoch that is not complete."""
    rows: int
    batch_size: int
    begun: int
    """The epoch in which the run began."""
    ranks: list[dict[str, Any] | None] = field(default_factory=list)
    """Within an epoch: each rank's sums and random states."""
    metrics: list[str] = field(default_factory=list)
    reason: str | None = None
    """Why the run had ended, if it had."""
    callbacks: list[list[Any]] = field(default_factory=list)
    """Pairs of a callback's class name and its state."""
    shuffle: bool | str | None = None
    """The order of rows, as `shuffle=` names it; None in checkpoints that were written before there were lanes."""

    def check(self, rows: int, batch_size: int, shuffle: bool | str, metrics: list[str]) -> None:
        """Raise if a run with such data and metrics cannot continue within the epoch."""
        if (self.rows, self.batch_size) != (rows, batch_size):
            raise DataError(
                f"The checkpoint stands in step {self.batch} of an epoch over {self.rows or 'a stream of'} rows with "
                f"batch_size={self.batch_size}; now there are {rows or 'streamed'} rows and batch_size={batch_size}. "
                "Resume with the same data and batch_size, or load it and start a new fit."
            )
        # A checkpoint without the entry has a permutation of all rows, or the stored order.
        if shuffle != self.shuffle and (self.shuffle is not None or shuffle is True):
            before = "global" if self.shuffle is None else self.shuffle
            raise DataError(
                f"The checkpoint stands within an epoch with shuffle={before!r}; now it is shuffle={shuffle!r}, "
                f"another order of rows. Resume with shuffle={before!r}, or load it and start a new fit."
            )
        if self.metrics != metrics:
            raise DataError(
                f"The checkpoint stands within an epoch with the metrics {self.metrics}; now they are {metrics}. "
                "Resume with the same metrics, or load it and start a new fit."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for a checkpoint."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        """Rebuild a position that `as_dict` returned."""
        older = {"shuffle": None}
        return cls(**{entry.name: {**older, **values}[entry.name] for entry in fields(cls)})
