"""The contract of a backend: one replica's steps on one rank, and how it is built there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import ArgumentError
from orca.shards.feed import Batch
from orca.shards.tree import take_rows, tree_map

if TYPE_CHECKING:
    from orca.callbacks import Callback
    from orca.launch.base import Rank
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
    extra: Mapping[str, float] = field(default_factory=dict)
    """Further values of a custom step, as sums over the rows."""


@dataclass(frozen=True)
class Seat:
    """Which part of the data a rank works on; a rank that only serves others has none."""

    rank: int | None
    world: int


@dataclass(frozen=True)
class StepOptions:
    """What `fit` can ask of every training step."""

    clip_norm: float | None = None
    clip_value: tuple[float, float] | None = None
    accumulate: int = 1
    """In how many pieces a step's rows are computed."""
    class_weight: Mapping[int, float] | None = None
    on_gradients: Callable[[], None] | None = None


class OwnMetrics(ABC):
    """Metrics that the framework's model keeps by itself, as sums that add up over the ranks."""

    @abstractmethod
    def reset(self) -> None:
        """Start from nothing."""

    @abstractmethod
    def sums(self) -> list[Any]:
        """This rank's sums so far, as arrays."""

    @abstractmethod
    def load(self, sums: list[Any]) -> None:
        """Go on from these sums."""

    @abstractmethod
    def results(self, sums: list[Any]) -> dict[str, float]:
        """What these sums, added over all ranks, stand for."""


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

    def predict_stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The outputs of batch after batch, in order; a replica that can computes several at once."""
        return map(self.predict_step, batches)

    def predict_nothing(self, features: Any) -> Any:
        """Outputs without rows for features without rows: from one row of zeros, cut off again."""
        row = tree_map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), features)
        return take_rows(self.predict_step(row), 0, 0)

    @abstractmethod
    def state(self) -> State:
        """Everything needed to go on: weights, optimizer."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Take over a state that `state` returned."""

    gives_outputs: bool = True
    """Whether training steps can show their outputs, for metrics."""
    own_metrics: OwnMetrics | None = None
    """The metrics that the model was compiled with, if it keeps its own."""
    inner_model: Any = None
    """The framework's own model, for callbacks."""
    inner_optimizer: Any = None
    """The framework's own optimizer, for callbacks."""

    def seat(self, place: Rank) -> Seat:
        """The part of the data that this rank works on."""
        return Seat(place.rank, place.world)

    def configure(self, options: StepOptions) -> None:
        """Hear what the steps to come have to do."""

    def random_state(self) -> dict[str, Any]:
        """Where the framework's random numbers stand."""
        return {}

    def load_random_state(self, state: dict[str, Any]) -> None:
        """Go on with random numbers from there."""

    def any(self, flag: bool) -> bool | None:
        """Whether the flag is set on some rank; None if ranks do not keep step, and cannot tell."""
        return flag

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
    preload_shared: bool = True
    """Whether those may be imported in a process that forks for others too, such as Spark's daemon; not if importing
    them starts threads."""
    rendezvous: str = "a port held by rank 0"
    """Where the ranks find each other, for `explain()`."""
    options: tuple[str, ...] = ()
    """Further arguments of ``from_*`` that this backend understands."""
    files: tuple[str, ...] = ()
    """How the names of files in the framework's own formats end."""
    exclusive: bool = False
    """Whether a process can serve one estimator only, so that another one needs new processes."""
    pretrained: bool = False
    """Whether models come with all they will ever know; they only predict, and tell the form of their inputs."""
    triples: bool = False
    """Whether three arrays in a tuple are features, labels and weights of rows in this framework."""
    class_axis: int = -1
    """Which axis of an output counts the classes, where its shape leaves that open."""

    @abstractmethod
    def check(self, spec: Any, workers: int) -> None:
        """Raise on the driver what can be known to fail before anything starts."""

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raise if one of the further arguments is not an option of this backend."""
        for option, value in given.items():
            if option not in self.options:
                raise ArgumentError(
                    f"{option}={value!r} is not an option of backend={self.name!r}."
                    + (f" Its options: {', '.join(self.options)}." if self.options else " It has none.")
                )

    def check_fit(self, spec: Any) -> None:
        """Raise on the driver if this model cannot be trained."""

    def check_evaluate(self, spec: Any) -> None:
        """Raise on the driver if rows cannot be scored with this model."""

    def check_features(self, spec: Any, features: Any) -> None:
        """Raise on the driver if this model does not take such rows; only asked of pretrained models."""

    def batch_size(self, spec: Any, asked: int | None) -> int:
        """How many rows `predict` gives to the model at once, where the user may have asked for a number."""
        return 256 if asked is None else asked

    def outputs_like(self, spec: Any, features: Any) -> Any:
        """Outputs without rows, of the right types, for such features, if they are known without computing any."""
        return None

    def travels(self, spec: Any) -> dict[str, Any]:
        """What of the user's has to be pickled on its way to the ranks, by the names of the arguments."""
        names = ("model", "optimizer", "loss", "train_step")
        return {name: getattr(spec, name, None) for name in names}

    def check_weights(self, spec: Any) -> None:
        """Raise on the driver if rows cannot be weighted in this model's loss."""

    def ranks(self, spec: Any, workers: int) -> int:
        """How many processes train: the workers, and those that serve them."""
        return workers

    def roles(self, spec: Any, workers: int) -> Sequence[str]:
        """What the ranks are called where they differ, in rank order; empty if all are workers."""
        return ()

    def creator_arguments(self, config: dict[str, Any], batch_size: int) -> tuple[Any, ...]:
        """What a data creator is called with."""
        return config, batch_size

    def keeps_step(self, spec: Any) -> bool:
        """Whether all ranks do the same steps side by side; what is decided within an epoch needs that."""
        return True

    @abstractmethod
    def build(self, spec: Any, context: RankContext, seed: int) -> Replica:
        """Make the replica of this rank for training and evaluation, connected to the others."""

    @abstractmethod
    def build_alone(self, spec: Any, seed: int, threads: int | None) -> Replica:
        """Make a replica for prediction only, without other ranks. `threads` is how many to use: None for as many
        as this process was given, 0 to leave the process as it is."""

    @abstractmethod
    def model(self, spec: Any, state: State | None, seed: int) -> Any:
        """Make the framework's own model object, with these weights, for the user."""

    def state_dict(self, state: State) -> dict[str, Any]:
        """The weights in the framework's own form."""
        return dict(state["model"])

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        """Write a model in a format for other programs; return the path written."""
        raise ArgumentError(f"export is not there for {self.framework}.")

    def score_name(self, spec: Any) -> str:
        """The metric that `score` gives if the estimator has none: "accuracy" or "r2"."""
        return "accuracy"

    def input_count(self, spec: Any) -> int | None:
        """How many inputs the model takes, if that can be told without making it."""
        return None

    def input_names(self, spec: Any) -> list[str]:
        """The names of the inputs in their order, if the model tells them."""
        return []

    def adapt_callback(self, callback: object) -> Callback | None:
        """Translate a callback object of the framework, or return None if it is not one."""
        return None

    def own_callbacks(self, spec: Any) -> Sequence[Callback]:
        """Callbacks that the model's own configuration asks for."""
        return ()

    def check_steps(self, spec: Any, options: StepOptions, hooks: Sequence[Callback]) -> None:
        """Raise on the driver if training steps cannot do what `fit` asks of them."""

    def write_model(self, model: Any, path: str) -> None:
        """Write a model to a file of the framework's own format, one of `files`."""

    def read_model(self, spec: Any, path: str, custom_objects: Mapping[str, Any] | None) -> State:
        """Read what such a file holds."""
        return {}

    def adapt_metric(self, metric: object) -> Metric | list[Metric] | None:
        """Translate a metric object of the framework, or return None if it is not one."""
        return None

    def tune_metrics(self, spec: Any, metrics: list[Metric]) -> list[Metric]:
        """Adjust metrics to the model's loss, for example the threshold between two classes."""
        return metrics

    def notes(self, spec: Any) -> Sequence[str]:
        """Lines for `explain()`."""
        return ()
