"""What ranks report to the driver while they train; one class per event. Only rank 0 sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.backends.parts import Parts
from orca.backends.replica import State
from orca.backends.worker.position import Position
from orca.shards.tree import Tree

Record = dict[str, Any]
"""The results of one epoch, as they appear in the History."""


@dataclass(frozen=True)
class EpochProgress:
    """How far an epoch is, for progress bars."""

    epoch: int
    rows: int
    total: int | None
    """Rows of the epoch; None if only its end will tell."""
    loss: float | None


@dataclass(frozen=True)
class EpochEnd:
    """An epoch is complete."""

    record: Record
    step: int
    """Steps done, over all fits."""


@dataclass(frozen=True)
class Scores:
    """The results of a validation within an epoch."""

    epoch: int
    step: int
    values: Record


@dataclass(frozen=True)
class StepValues:
    """The values of an epoch's single steps, for loggers that want them."""

    first: int
    """Number of the first step."""
    values: dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class MoreWorkers:
    """A question: whether the run should pause after this step, to continue with more workers."""

    step: int


@dataclass(frozen=True)
class Checkpoint:
    """A whole state, for the driver to write."""

    state: State
    position: Position
    epoch: int
    step: int
    example: Tree
    path: str | None = None
    """Where a callback wants it; None for the run's own checkpoints."""
    remove: str | None = None
    """An older one to delete after it is written."""
    parts: Parts | None = None
    """What the ranks have written themselves, which the state lacks."""


@dataclass(frozen=True)
class NotReached:
    """Ranks that cannot write to the folder of checkpoints, so that the driver has to."""

    ranks: dict[int, str]
    """Their hosts."""
