"""The contract of a backend: one replica's steps on one rank, and how it is built there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orca.shards.feed import Batch

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric

State = dict[str, Any]
"""A tree of dicts and lists whose leaves are numpy arrays, numbers, strings, booleans or None."""


@dataclass(frozen=True)
class Outcome:
    """What a training or evaluation step gives: the summed loss, what to divide it by (0: no loss), and for
    metrics the targets and outputs as numpy arrays (None where nobody asked)."""

    loss_sum: float
    loss_count: float
    target: Any = None
    output: Any = None


class Replica(ABC):
    """One copy of the model on one rank."""

    @abstractmethod
    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        """Learn from this rank's share of one step, together with the other ranks."""

    @abstractmethod
    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        """Score rows without learning; no other rank takes part."""

    @abstractmethod
    def predict_step(self, features: Any) -> Any:
        """Return the model's outputs for rows, as arrays in the model's own structure."""

    @abstractmethod
    def state(self) -> State:
        """Everything needed to go on: weights, optimizer."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Take over a state that `state` returned."""

    def survey(self, data: Any) -> Any:
        """Look at rows before training for something all ranks have to know; see `agree`."""
        return None

    def agree(self, surveys: list[Any]) -> None:
        """Hear what the surveys of all ranks found."""

    def reseed(self, seed: int, epoch: int, rank: int) -> None:
        """Start the random numbers of an epoch (dropout, augmentation), the same whenever it is run."""

    def settle(self) -> None:
        """Make equal on all ranks what a training step does not, such as running statistics."""

    @abstractmethod
    def learning_rate(self) -> float | None:
        """The current learning rate, if the optimizer has one."""


class Backend(ABC):
    """A framework together with one way to keep replicas in sync. Stateless and picklable."""

    name: str = ""
    framework: str = ""
    preload: tuple[str, ...] = ()
    """Modules that local ranks find imported already; only for frameworks that survive a fork."""
    class_axis: int = -1
    """Which axis of an output counts the classes, where its shape leaves that open."""

    @abstractmethod
    def check(self, spec: Any, workers: int) -> None:
        """Raise on the driver what can be known to fail before anything starts."""

    def check_fit(self, spec: Any) -> None:
        """Raise on the driver if this model cannot be trained."""

    @abstractmethod
    def build(self, spec: Any, context: RankContext, seed: int) -> Replica:
        """Make the replica of this rank for training and evaluation, connected to the others."""

    @abstractmethod
    def build_alone(self, spec: Any, seed: int, threads: int | None) -> Replica:
        """Make a replica for prediction only, without other ranks."""

    @abstractmethod
    def model(self, spec: Any, state: State | None, seed: int) -> Any:
        """Make the framework's own model object, with these weights, for the user."""

    def input_count(self, spec: Any) -> int | None:
        """How many inputs the model takes, if that can be told without making it."""
        return None

    def adapt_metric(self, metric: object) -> Metric | None:
        """Translate a metric object of the framework, or return None if it is not one."""
        return None

    def tune_metrics(self, spec: Any, metrics: list[Metric]) -> list[Metric]:
        """Adjust metrics to the model's loss, for example the threshold between two classes."""
        return metrics

    def notes(self, spec: Any) -> Sequence[str]:
        """Lines for `explain()`."""
        return ()
