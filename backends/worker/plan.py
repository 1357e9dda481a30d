"""What the driver asks of the ranks in a run of fit, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orca.backends.base import StepOptions
from orca.backends.parts import Reach
from orca.backends.worker.position import Position
from orca.callbacks import Callback
from orca.triggers import Trigger

if TYPE_CHECKING:
    from orca.backends.base import State


@dataclass(frozen=True)
class FitPlan:
    """Length, order and options of a run."""

    first_epoch: int
    last_epoch: int
    batch_size: int
    shuffle: bool | str = True
    first_step: int = 0
    """Steps of earlier fits."""
    max_steps: int | None = None
    validate: bool = False
    validation_freq: int | None = 1
    """After how many epochs to validate; None for the last one only."""
    validation_trigger: Trigger | None = None
    """After which steps to validate."""
    validation_steps: int | None = None
    steps_per_epoch: int | None = None
    callbacks: Sequence[Callback] = ()
    options: StepOptions = field(default_factory=StepOptions)
    trigger: Trigger | None = None
    terminate_on_nan: bool = True
    resume: Position | None = None
    """Where to resume."""
    stopped: str | None = None
    """Why the run had already ended when a failure occurred."""
    feature_names: Sequence[str] = ()
    """The names of the features' columns, for messages."""
    fetched: frozenset[str] = frozenset()
    """Sources whose rows are produced on the ranks."""
    steps_wanted: bool = False
    """Whether a logger uses the losses of single steps."""
    reach: Reach | None = None
    """The folder into which ranks write the parts of checkpoints, if their state is in parts."""
    reduced: bool = False
    """Whether the run has fewer workers than it should: before each epoch the driver is asked for more."""


@dataclass(frozen=True)
class FitResult:
    """Result of fit on a rank; everything but the records comes from rank 0 only."""

    records: list[dict[str, Any]]
    state: State | None
    position: Position
    epoch: int
    step: int
    callbacks: list[bytes | None]
    reason: str | None
    steps: int
    """Steps per epoch."""
    example: Any
    """The model's inputs without rows, for later uses of their form."""
    paused: bool = False
    """Whether the run ended only to continue with more workers."""
