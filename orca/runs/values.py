"""The values that runs work on: what an estimator was created with, what it has learned, what a call asks for."""

from __future__ import annotations

import numbers
import os
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from orca.backends.base import Backend, Spec, State, Topology
from orca.backends.worker.position import Position
from orca.callbacks import Callback
from orca.core.arguments import (
    check_any_columns,
    check_choice,
    check_classes,
    check_columns,
    check_count,
    check_data,
    check_fields,
    check_flag,
    check_folder,
    check_limit,
    check_path,
    check_range,
    check_shuffle,
    check_text,
    named,
    optional,
    shown,
    wrong,
)
from orca.errors import ArgumentError, DataError
from orca.launch.resources import Resources
from orca.metrics import Metric
from orca.shards.columns import Columns
from orca.shards.tree import Tree
from orca.triggers import EveryEpoch, as_trigger

if TYPE_CHECKING:
    from orca.loggers import TensorBoard

ACCELERATORS = ("openvino",)
_least_0 = partial(check_count, least=0)


def _weights(name: str, value: Any) -> Any:
    """Check that weights are the name of a column or something with one entry per row."""
    if isinstance(value, str):
        return check_columns(name, value)
    is_array = hasattr(value, "__array__") and getattr(value, "shape", None) != ()
    if is_array or (isinstance(value, list | tuple) and value):
        return value
    raise DataError(f"{name}={shown(value)}: expected an array with one number per row, or the name of a column.")


def _resume(name: str, value: Any) -> bool | str:
    if value is None or isinstance(value, str | os.PathLike):
        return False if value is None else check_path(name, value, "True or the path of a checkpoint")
    try:
        return check_flag(name, value)
    except ArgumentError:
        raise wrong(name, value, "True or the path of a checkpoint") from None


def _verbose(name: str, value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and value == "auto"):
        return value
    try:
        return check_count(name, value, least=0, most=2)
    except ArgumentError:
        raise wrong(name, value, '0, 1, 2 or "auto"') from None


def _output_cols(name: str, value: Any) -> Any:
    """Check names for outputs: one, or a list of different ones."""
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list | tuple) or not value or not all(isinstance(part, str) and part for part in value):
        raise wrong(name, value, "a name or a list of names")
    if len(set(value)) < len(value):
        raise ArgumentError(f"{name}={value!r} has a name twice.")
    return value


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
    per_worker: Resources = field(default_factory=Resources)
    """The resources of each worker."""

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
        resources_per_worker: Mapping[str, float] | None = None,
        use_gpu: bool = False,
    ) -> Setup:
        """Check the values that users pass to a constructor."""
        count = check_count("workers", workers)
        per_worker = Resources.create(resources_per_worker, use_gpu)
        backend.check(spec, count)
        setup = cls(
            backend,
            spec,
            count,
            tuple(backend.framework.metrics(spec, metrics)),
            check_folder("model_dir", model_dir),
            check_count("epochs", epochs),
            check_count("batch_size", batch_size),
            tuple(backend.framework.own_callbacks(spec)),
            per_worker,
        )
        if per_worker.gpus and (setup.servers or not backend.traits.gpus):
            cause = "with servers" if backend.traits.gpus else f"of {backend.framework.name}"
            argument = "use_gpu=True" if use_gpu else f"resources_per_worker={shown(resources_per_worker)}"
            raise ArgumentError(f"{argument}: backend={backend.name!r} {cause} computes on the CPU, and needs no GPU.")
        return setup

    @property
    def resources(self) -> Resources:
        """The resources of each rank that is not a server; it may run several workers."""
        return self.per_worker.times(max(1, self.workers // self.topology.ranks))

    @property
    def topology(self) -> Topology:
        """The processes that train this model."""
        return self.backend.topology(self.spec, self.workers)

    @property
    def servers(self) -> int:
        """How many of the ranks serve the workers; they take no slot."""
        return max(0, self.topology.ranks - self.workers)

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
        framework = setup.backend.framework
        if seed is None:
            seed = framework.default_seed(setup.spec)
        if seed is None:
            return cls(secrets.randbelow(2**31))
        return cls(check_count("seed", seed, least=0, most=framework.largest_seed))

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

    def with_tensorboard(self, log_dir: str, app_name: str) -> Preferences:
        """Return the preferences with a logger that writes to ``log_dir/app_name``."""
        from orca.loggers import TensorBoard

        path = check_path("log_dir", log_dir, "the path of a folder")
        if not isinstance(app_name, str):
            raise wrong("app_name", app_name, "a name")
        return replace(self, tensorboard=TensorBoard(path, app_name))

    def summary(self, kind: str, tag: str) -> list[tuple[int, float, float]]:
        """Return (step, value, time) of what was written to TensorBoard."""
        check_text("tag", tag, "the name of a value")
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

    def __post_init__(self) -> None:
        check_fields(
            self,
            data=check_data,
            y=optional(check_data),
            feature_cols=optional(check_columns),
            label_cols=check_any_columns,
            sample_weight=optional(_weights),
        )


@dataclass(frozen=True)
class Length:
    """How long to train."""

    epochs: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    initial_epoch: int | None = None

    def __post_init__(self) -> None:
        count = optional(check_count)
        check_fields(self, epochs=count, max_steps=count, steps_per_epoch=count, initial_epoch=optional(_least_0))


@dataclass(frozen=True)
class StepRequest:
    """What every training step does."""

    batch_size: int | None = None
    shuffle: bool | str = True
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: tuple[float, float] | None = None
    class_weight: Mapping[int, float] | None = None
    terminate_on_nan: bool = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            batch_size=optional(check_count),
            shuffle=check_shuffle,
            accumulate=check_count,
            clip_norm=check_limit,
            clip_value=check_range,
            class_weight=check_classes,
            terminate_on_nan=check_flag,
        )


@dataclass(frozen=True)
class Validation:
    """What to validate on, and how often."""

    data: Any = None
    freq: int = 1
    steps: int | None = None
    trigger: Any = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            data=named("validation_data", optional(check_data)),
            freq=named("validation_freq", check_count),
            steps=named("validation_steps", optional(check_count)),
            trigger=lambda _, value: as_trigger(value, "validation_trigger"),
        )

    @property
    def epochs(self) -> int | None:
        """After how many epochs to validate; None if the trigger names steps."""
        if isinstance(self.trigger, EveryEpoch):
            return self.trigger.interval
        return self.freq if self.trigger is None else None


@dataclass(frozen=True)
class Recovery:
    """When checkpoints are written, and how a run continues from one."""

    trigger: Any = None
    resume: bool | str = False
    max_failures: int = 0
    min_workers: int | None = None
    """The smallest number of workers to continue with after a failure; None for all workers."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            trigger=lambda _, value: as_trigger(value),
            resume=_resume,
            max_failures=_least_0,
            min_workers=optional(check_count),
        )


@dataclass(frozen=True)
class Display:
    """What a run shows while it trains."""

    progress: bool | None = None
    """Whether to show a progress bar; None where one is visible."""
    verbose: int | str | None = None
    """Keras' name for it."""

    def __post_init__(self) -> None:
        check_fields(self, progress=optional(check_flag), verbose=optional(_verbose))

    @property
    def show(self) -> bool | None:
        """Whether to show a progress bar; None where one is visible."""
        is_open = self.progress is not None or self.verbose in (None, "auto")
        return self.progress if is_open else bool(self.verbose)


@dataclass(frozen=True)
class FitRequest:
    """One call of `fit`."""

    rows: RowsRequest
    length: Length = Length()
    steps: StepRequest = StepRequest()
    validation: Validation = Validation()
    recovery: Recovery = Recovery()
    callbacks: Any = None
    display: Display = Display()
    preferences: Preferences = Preferences()


@dataclass(frozen=True)
class PredictRequest:
    """One call of `predict`."""

    data: Any
    batch_size: int | None = None
    feature_cols: Columns = None
    output_cols: str | Sequence[str] | None = None
    accelerator: str | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            data=check_data,
            batch_size=optional(check_count),
            feature_cols=optional(check_columns),
            output_cols=optional(_output_cols),
            accelerator=optional(partial(check_choice, choices=ACCELERATORS, also="None")),
        )


def labels_and_epochs(y: Any, epochs: int | None) -> tuple[Any, int | None]:
    """Return labels and epochs: in ``fit(data, 3)`` the second argument is the number of epochs."""
    if isinstance(y, bool) or not isinstance(y, numbers.Integral):
        return y, epochs
    if epochs is not None:
        raise ArgumentError(f"y={y} is a number of epochs, as in fit(data, {y}), but epochs={epochs} is given as well.")
    return None, check_count("epochs", y)
