"""The contract of a replica: one copy of a model on one rank, and the values its steps exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orca.shards.checks import LargestClass, Rules
from orca.shards.feed import Batch
from orca.shards.tree import take_rows, tree_map

if TYPE_CHECKING:
    from orca.backends.parts import Parts
    from orca.launch.base import Rank

State = dict[str, Any]
"""A tree of dicts and lists whose leaves are numpy arrays, numbers, strings, booleans or None."""
Array: TypeAlias = NDArray[Any]
Tree: TypeAlias = "Array | Mapping[str, Tree] | Sequence[Tree]"
"""Rows of features, labels or outputs: an array, or dicts, lists and tuples of arrays with the same first axis."""


@dataclass(frozen=True)
class Outcome:
    """Result of a training or evaluation step: the summed loss, its divisor (0: no loss), and, where metrics need
    them, targets and outputs as numpy arrays."""

    loss_sum: float
    loss_count: float
    target: Any = None
    output: Any = None
    extra: Mapping[str, float] = field(default_factory=dict)
    """Further values of a custom step, as sums over the rows."""


@dataclass(frozen=True)
class Seat:
    """A rank's position among the ranks that process data; `rank` is None for one that only serves others."""

    rank: int | None
    world: int


@dataclass(frozen=True)
class StepOptions:
    """Options of `fit` that apply to every training step."""

    clip_norm: float | None = None
    clip_value: tuple[float, float] | None = None
    accumulate: int = 1
    """Number of pieces in which a step's rows are computed."""
    class_weight: Mapping[int, float] | None = None
    on_gradients: Callable[[], None] | None = None


class OwnMetrics(ABC):
    """Metrics that the framework's model maintains itself, as sums that can be reduced across ranks."""

    @abstractmethod
    def reset(self) -> None:
        """Set all sums to zero."""

    @abstractmethod
    def sums(self) -> list[Any]:
        """Return this rank's sums, as arrays."""

    @abstractmethod
    def load(self, sums: list[Any]) -> None:
        """Continue from these sums."""

    @abstractmethod
    def results(self, sums: list[Any]) -> dict[str, float]:
        """Compute the metrics from sums over all ranks."""


class Replica(ABC):
    """One copy of the model on one rank."""

    gives_outputs: bool = True
    """Whether training steps return their outputs, for metrics."""
    own_metrics: OwnMetrics | None = None
    """The metrics that the model was compiled with, if it maintains its own."""
    inner_model: Any = None
    """The framework's own model, for callbacks."""
    inner_optimizer: Any = None
    """The framework's own optimizer, for callbacks."""

    @abstractmethod
    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        """Train on this rank's share of one step, together with the other ranks."""

    @abstractmethod
    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        """Score rows without training; no other rank takes part."""

    @abstractmethod
    def predict_step(self, features: Any) -> Any:
        """Return the model's outputs for rows, as arrays in the model's own structure."""

    def predict_stream(self, batches: Iterable[Tree]) -> Iterator[Any]:
        """Yield the outputs of each batch, in order; a replica may compute several at once."""
        return map(self.predict_step, batches)

    def predict_nothing(self, features: Tree) -> Tree:
        """Return outputs without rows for features without rows: those of one row of zeros, cut off."""
        row = tree_map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), features)
        empty: Tree = take_rows(self.predict_step(row), 0, 0)
        return empty

    @abstractmethod
    def state(self) -> State:
        """Return everything needed to continue: weights and optimizer."""

    def save_parts(self, path: str, token: str) -> tuple[State, Parts | None] | None:
        """Write this rank's slices of the state to a file below `path`, whose name has the token.

        Called on all ranks together, where `Backend.in_parts`. Return the rest of the state, with `InParts` in place of
        what was written, and on rank 0 the index; None if the ranks hold no slices.
        """
        return None

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Restore a state that `state` returned."""

    @abstractmethod
    def learning_rate(self) -> float | None:
        """Return the current learning rate, if the optimizer has one."""

    def seat(self, place: Rank) -> Seat:
        """Return this rank's position among the ranks that process data."""
        return Seat(place.rank, place.world)

    def configure(self, options: StepOptions) -> None:
        """Set the options for subsequent steps."""

    def random_state(self) -> State:
        """Return the state of the framework's random number generators."""
        return {}

    def load_random_state(self, state: State) -> None:
        """Restore the framework's random number generators."""

    def any(self, flag: bool) -> bool | None:
        """Return whether the flag is set on some rank; None if ranks do not run in lockstep and cannot know."""
        return flag

    def total(self, values: Sequence[float]) -> list[float] | None:
        """Return the sums of numbers over all ranks; None if ranks do not run in lockstep, or cannot do that."""
        return None

    def label_rules(self) -> Rules:
        """Return what the loss accepts as labels."""
        return {}

    def expect_classes(self, largest: Mapping[str, LargestClass]) -> None:
        """Receive the largest classes of this rank's labels, whose number only the model's output can tell."""

    def survey(self, data: Tree) -> object:
        """Inspect rows before training for facts that all ranks must know; see `agree`."""
        return None

    def agree(self, surveys: list[Any]) -> None:
        """Receive the surveys of all ranks."""

    def reseed(self, seed: int, epoch: int, rank: int) -> None:
        """Seed the random numbers of an epoch (dropout, augmentation), reproducibly."""

    def settle(self) -> None:
        """Synchronize across ranks what training steps do not, such as running statistics."""
