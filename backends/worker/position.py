"""Where a run stands: all that a checkpoint needs besides the state to resume bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


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

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for a checkpoint."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        """Rebuild a position that `as_dict` returned."""
        older = {"shuffle": None}
        return cls(**{entry.name: {**older, **values}[entry.name] for entry in fields(cls)})
