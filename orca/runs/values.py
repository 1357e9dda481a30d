"""The values that runs work on: what an estimator was created with, what it has learned, what a call asks for."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orca.backends.base import Backend, Spec, State, Topology
from orca.backends.worker.position import Position
from orca.callbacks import Callback
from orca.core.arguments import check_count, check_folder
from orca.errors import ArgumentError
from orca.metrics import Metric
from orca.shards.columns import Columns
from orca.shards.tree import Tree

if TYPE_CHECKING:
    from orca.loggers import TensorBoard


@dataclass(frozen=True)
class Setup:
    """What an estimator was created with."""

    backend: Backend[Any]
    spec: Spec
    workers: int = 1
    metrics: tuple[Metric, ...] = ()
    model_dir: str | None = None
    epochs: int = 1
    batch_size: int = 32
    callbacks: tuple[Callback, ...] = ()
    """Callbacks that the spec asks for, such as its learning rate scheduler."""

    @classmethod
    def create(
        cls,
        backend: Backend[Any],
        spec: Spec,
        *,
        workers: int = 1,
        metrics: object = None,
        model_dir: str | None = None,
        epochs: int = 1,
        batch_size: int = 32,
    ) -> Setup:
        """Check the values that users pass to a constructor."""
        count = check_count("workers", workers)
        backend.check(spec, count)
        return cls(
            backend,
            spec,
            count,
            tuple(backend.framework.metrics(spec, metrics)),
            check_folder("model_dir", model_dir),
            check_count("epochs", epochs),
            check_count("batch_size", batch_size),
            tuple(backend.framework.own_callbacks(spec)),
        )

    @property
    def topology(self) -> Topology:
        """The processes that train this model."""
        return self.backend.topology(self.spec, self.workers)

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that ranks may find imported."""
        return self.backend.traits.preload


@dataclass(frozen=True)
class Learned:
    """What an estimator has learned so far."""

    seed: int
    """Seed of weights, shuffling and dropout; a loaded state brings its own."""
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Identifies the estimator to ranks, which keep a replica between calls."""
    version: int = 0
    """Counts the states; ranks compare it with what they hold."""
    epoch: int = 0
    step: int = 0
    state: State | None = None
    """Weights and optimizer; None before the first fit."""
    position: Position | None = None
    """Where the last run stopped, for `resume`."""
    example: Tree | None = None
    """The model's inputs without any row."""

    @classmethod
    def nothing(cls, setup: Setup, seed: int | None) -> Learned:
        """Return the values of a new estimator."""
        if seed is None:
            seed = setup.backend.framework.default_seed(setup.spec)
        return cls(secrets.randbelow(2**31) if seed is None else check_count("seed", seed, least=0))

    def with_new_owner(self) -> Learned:
        """Return the same under a new identity, so that no rank uses a replica that it holds."""
        return replace(self, owner=uuid.uuid4().hex)

    def with_state(self, state: State, **changes: Any) -> Learned:
        """Return another state from outside of a fit."""
        learned = replace(self, state=state, version=self.version + 1, **changes)
        # Without its state warm ranks would continue with the optimizer that they have, new ones with a fresh one.
        return learned if "optimizer" in state else learned.with_new_owner()


@dataclass(frozen=True)
class Preferences:
    """What an estimator's setters have chosen for all further fits."""

    clip_norm: float | None = None
    clip_value: tuple[float, float] | None = None
    tensorboard: TensorBoard | None = None

    def summary(self, kind: str, tag: str) -> list[tuple[int, float, float]]:
        """Return (step, value, time) of what was written to TensorBoard."""
        if self.tensorboard is None:
            raise ArgumentError("There is no summary: call set_tensorboard(log_dir, app_name) before fit.")
        return list(self.tensorboard.summary(kind, tag))


@dataclass(frozen=True)
class RowsRequest:
    """Which rows to read, and how."""

    data: Any
    y: Any = None
    feature_cols: Columns = None
    label_cols: Columns = None
    sample_weight: Any = None


@dataclass(frozen=True)
class Length:
    """How long to train."""

    epochs: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    initial_epoch: int | None = None


@dataclass(frozen=True)
class StepRequest:
    """What every training step does."""

    batch_size: int | None = None
    shuffle: bool = True
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | tuple[float, float] | None = None
    class_weight: Mapping[int, float] | None = None
    terminate_on_nan: bool = True


@dataclass(frozen=True)
class Validation:
    """What to validate on, and how often."""

    data: Any = None
    freq: int = 1
    steps: int | None = None


@dataclass(frozen=True)
class Recovery:
    """When checkpoints are written, and how a run continues from one."""

    trigger: Any = None
    resume: bool | str = False
    max_failures: int = 0


@dataclass(frozen=True)
class FitRequest:
    """One call of `fit`."""

    rows: RowsRequest
    length: Length = Length()
    steps: StepRequest = StepRequest()
    validation: Validation = Validation()
    recovery: Recovery = Recovery()
    callbacks: Any = None
    progress: bool | None = None
    preferences: Preferences = Preferences()


@dataclass(frozen=True)
class PredictRequest:
    """One call of `predict`."""

    data: Any
    batch_size: int | None = None
    feature_cols: Columns = None
    output_cols: str | Sequence[str] | None = None
    accelerator: str | None = None
