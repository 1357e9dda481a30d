"""The contract of a callback, and the view of a run that its hooks receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

State: TypeAlias = dict[str, Any]


class ReplicaLike(Protocol):
    """The part of a backend's replica that a run uses."""

    inner_model: Any
    inner_optimizer: Any

    def learning_rate(self) -> float | None:
        """Return the current learning rate, or None if the optimizer has none."""

    def state(self) -> State:
        """Return the state of model and optimizer."""

    def load_state(self, state: State) -> None:
        """Restore a state returned by `state`."""

    def total(self, values: Sequence[float]) -> list[float] | None:
        """Sum numbers over all ranks; None if ranks do not run in lockstep, or cannot."""


class Run:
    """The run as a callback sees it, with the calls that stop, save and restore it."""

    def __init__(self, replica: ReplicaLike, rank: int, world: int, config: dict[str, Any]) -> None:
        self.rank = rank
        """The number of this rank, from 0."""
        self.world = world
        """The number of ranks that train."""
        self.config = config
        """The estimator's config."""
        self.epoch = 0
        """The number of the current epoch, from 1."""
        self.own_epoch = 0
        """Epochs already completed before this run, as restored by a callback from its own backup."""
        self.last_epoch = 0
        """The epoch after which this run ends."""
        self.step = 0
        """Steps completed, over all fits of the estimator."""
        self.batch = 0
        """Steps completed in this epoch, out of `batches`."""
        self.batches = 0
        """Steps in an epoch."""
        self.loss: float | None = None
        """This rank's loss in the last step; `step_loss` returns that over all ranks, `record` has the epoch's."""
        self.loss_parts: tuple[float, float] = (0.0, 0.0)
        """This rank's summed loss in the last step and its divisor."""
        self.record: dict[str, Any] = {}
        """The record of the epoch that just ended, identical on every rank. Values added on rank 0 appear in the
        History."""
        self.scores: dict[str, float] = {}
        """The results of the last validation within an epoch, identical on every rank."""
        self.validates = False
        """Whether this run has validation data."""
        self.resumed = False
        """Whether this run resumes from a checkpoint."""
        self.reason: str | None = None
        """Why a callback stopped the run, or None."""
        self.saves: list[tuple[str, str | None]] = []
        """Checkpoints to write: (path, path to remove afterwards)."""
        self.ask: Callable[..., None] | None = None
        """Calls a replica method on the parameter servers, which run no callbacks; None without servers."""
        self._replica = replica

    @property
    def replica(self) -> ReplicaLike:
        """This rank's replica, for callbacks that belong to a backend."""
        return self._replica

    @property
    def model(self) -> Any:
        """The framework's own model on this rank."""
        return self._replica.inner_model

    @property
    def optimizer(self) -> Any:
        """The framework's own optimizer on this rank."""
        return self._replica.inner_optimizer

    @property
    def learning_rate(self) -> float | None:
        """The current learning rate, or None if the optimizer has none."""
        return self._replica.learning_rate()

    def step_loss(self) -> float | None:
        """Return the loss of the last step over all ranks. Call it on all ranks at the same point.

        This rank's own loss where ranks do not run in lockstep; None if there is none.
        """
        parts = self._replica.total(self.loss_parts)
        if parts is None:
            return self.loss
        return parts[0] / parts[1] if parts[1] else None

    def stop(self, reason: str = "requested by a callback") -> None:
        """End the run after this step or epoch, on all ranks together.

        Args:
            reason: Appears as ``history.stopped``.
        """
        self.reason = reason

    def save(self, path: str, remove: str | None = None) -> None:
        """Have the driver write a checkpoint.

        Args:
            path: Folder to write, on any fsspec path.
            remove: Older checkpoint to delete afterwards.
        """
        self.saves.append((path, remove))

    def snapshot(self) -> State:
        """Return the full state of model and optimizer. Call it on all ranks at the same point."""
        if self.ask is not None:
            self.ask("state")
        return self._replica.state()

    def restore(self, state: State) -> None:
        """Restore a snapshot. Call it on all ranks at the same point.

        Args:
            state: The return value of `snapshot`.
        """
        if self.ask is not None:
            self.ask("load_state", {**state, "model": {}})
        self._replica.load_state(state)


class Callback:
    """Runs inside every rank. Override the hooks you need; each is called on all ranks at the same point.

    After `fit`, the attributes of rank 0's copy are copied into the object you passed.
    """

    acts_on_batches = True
    """Whether batch hooks may stop the run or save. If so, the ranks synchronize this decision after every step."""

    def before_run(self, run: Run) -> None:
        """Called before the first epoch."""

    def after_run(self, run: Run) -> None:
        """Called after the last epoch, even if the run was stopped early."""

    def before_epoch(self, run: Run) -> None:
        """Called before an epoch's first batch."""

    def after_epoch(self, run: Run) -> None:
        """Called after an epoch and its validation; `run.record` holds the results."""

    def before_batch(self, run: Run) -> None:
        """Called before a step."""

    def after_batch(self, run: Run) -> None:
        """Called after a step; `run.loss` holds this rank's loss."""

    def on_gradients(self, run: Run) -> None:
        """Called when gradients are reduced over all ranks, before they are clipped and applied."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores of this callback: numbers, strings and arrays, in dicts and lists."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""

    def bring_back(self, attributes: dict[str, Any]) -> None:
        """Copy the attributes of rank 0's copy into this object, in the user's process."""
        self.__dict__.update(attributes)


BATCH_HOOKS = ("before_batch", "after_batch", "on_gradients")


def overrides(callback: Callback, hook: str) -> bool:
    """Return whether a callback overrides a hook."""
    return getattr(type(callback), hook) is not getattr(Callback, hook)
