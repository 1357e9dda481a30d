"""The contracts of a backend: `Framework` once per framework, `Backend` once per synchronization strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from orca.backends.replica import Outcome, OwnMetrics, Replica, Seat, State, StepOptions, Tree
from orca.callbacks import LRScheduler
from orca.callbacks.rates import RateSchedule
from orca.core.arguments import LARGEST
from orca.errors import ArgumentError
from orca.metrics import Metric, resolve
from orca.shards.checks import Rules
from orca.triggers import EveryEpoch, Trigger

if TYPE_CHECKING:
    from orca.callbacks import Callback
    from orca.launch.rank import RankContext


class Spec(Protocol):
    """A model and its settings, created from a constructor's arguments. Frozen and picklable."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The user's configuration, passed to creator functions."""

    def travels(self) -> Mapping[str, object]:
        """Return the user's objects that are pickled on the way to the ranks, by argument name."""


SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True)
class Traits:
    """Facts about a backend that do not depend on the model."""

    preload: tuple[str, ...] = ()
    """Modules to import before local ranks are forked; only for frameworks that survive a fork."""
    preload_shared: bool = True
    """Whether processes that also fork for others (Spark's daemon) may import them; not if they start threads."""
    rendezvous: str = "a port held by rank 0"
    """Where the ranks meet, for `explain()`."""
    options: tuple[str, ...] = ()
    """Further arguments of ``from_*`` that this backend accepts."""
    exclusive: bool = False
    """Whether a process can serve only one estimator, so that another one needs new processes."""
    gpus: bool = True
    """Whether its replicas compute on GPUs where they find some."""


@dataclass(frozen=True)
class Topology:
    """The processes that train a model with a number of workers."""

    ranks: int
    """The workers and the processes that serve them."""
    roles: tuple[str, ...] = ()
    """Names of the ranks where they differ, in rank order; empty if all are workers."""
    lockstep: bool = True
    """Whether all ranks do the same steps at the same time; decisions within an epoch need that."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model, as far as they are known without creating it."""

    count: int | None = None
    names: tuple[str, ...] = ()
    most: int | None = None
    """The largest number of inputs, if some are optional."""


@dataclass(frozen=True)
class FitCheck:
    """The features of `fit` that a call uses, checked once on the driver before anything starts."""

    workers: int
    options: StepOptions
    callbacks: Sequence[Callback] = ()
    trigger: Trigger | None = None
    """When checkpoints are written."""
    weighted: bool = False
    """Whether rows have weights, by sample_weight= or class_weight=."""
    validation_trigger: Trigger | None = None
    """When to validate, if not after epochs."""


class Framework(ABC, Generic[SpecT]):
    """The operations that a framework defines once, for all its backends. Stateless and picklable."""

    name: str
    arguments: tuple[str, ...] = ()
    """Arguments that `spec` accepts."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Further names of backends."""
    file_suffixes: tuple[str, ...] = ()
    """Suffixes of files in the framework's own formats."""
    inference_only: bool = False
    """Whether models only predict; such models know the form of their inputs."""
    triples: bool = False
    """Whether a tuple of three arrays means features, labels and row weights in this framework."""
    largest_seed: int = LARGEST
    """The largest seed that the framework accepts."""
    metrics_in_spec: bool = False
    """Whether metrics may be parts of the model, so that `spec` receives ``metrics`` too."""
    callback_arguments: frozenset[str] = frozenset({"scheduler_creator", "scheduler_step"})
    """Arguments that `own_callbacks` depends on; with another value of one the callbacks begin again."""
    class_axis: int = -1
    """The axis of an output that holds the classes, where its shape is ambiguous."""

    @abstractmethod
    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> SpecT:
        """Create the spec from a constructor's arguments and the backend's options."""

    @abstractmethod
    def model(self, spec: SpecT, state: State | None, seed: int) -> Any:
        """Create the framework's own model object, with these weights, for the user."""

    def state_dict(self, state: State) -> dict[str, Any]:
        """Return the weights in the framework's own form."""
        return dict(state["model"])

    def write_model(self, model: Any, path: str) -> None:
        """Write a model to a file with one of `file_suffixes`."""
        raise ArgumentError(f"path={path!r}: {self.name} models have no file format of their own in Orca.")

    def read_model(self, spec: SpecT, path: str, custom_objects: Mapping[str, object] | None) -> State:
        """Read the state from a file with one of `file_suffixes`."""
        raise ArgumentError(f"path={path!r}: {self.name} models have no file format of their own in Orca.")

    def export(self, model: Any, kind: str, path: str, example: Tree | None) -> str:
        """Write a model in a format for other programs; return the path written."""
        raise ArgumentError(f"export() is not supported for {self.name}.")

    def export_state(self, spec: SpecT, state: State | None, seed: int, kind: str, path: str) -> str | None:
        """Write the model in a format for other programs, if that needs no example of the inputs; else return None."""
        return None

    def learned(self, spec: SpecT, state: State) -> None:
        """Receive what an estimator has learned, in the driver's process, after `fit` and `load`."""

    def session(self, spec: SpecT, state: State | None, seed: int) -> Any:
        """Return a session of TensorFlow with the learned values."""
        raise AttributeError(f"sess is for TensorFlow graphs; this estimator is for {self.name}.")

    def write_checkpoint(self, state: State, path: str) -> str:
        """Write a state as a checkpoint of TensorFlow; return its path."""
        raise ArgumentError(f"save_tf_checkpoint() is for TensorFlow graphs; this estimator is for {self.name}.")

    def read_checkpoint(self, spec: SpecT, path: str) -> State:
        """Read the state in a checkpoint of TensorFlow."""
        raise ArgumentError(f"load_tf_checkpoint() is for TensorFlow graphs; this estimator is for {self.name}.")

    def inputs(self, spec: SpecT) -> Inputs:
        """Return what is known of the model's inputs."""
        return Inputs()

    def inspected_inputs(self, spec: SpecT) -> Inputs:
        """Return what is known of the inputs once the model was created, where only that can tell."""
        return self.inputs(spec)

    def output_count(self, spec: SpecT) -> int | None:
        """Return the number of outputs, if it is known without creating the model."""
        return None

    def flat_counts(self, spec: SpecT) -> tuple[int, int] | None:
        """Return the numbers of inputs and labels if they decide how a flat tuple of arrays is read."""
        return None

    def leaf_types(self, spec: SpecT, rows: Mapping[str, Tree]) -> Mapping[str, str]:
        """Return the numpy types that the model converts such rows to, by dotted name, to check the range of values."""
        return {}

    def other_kinds(self, spec: SpecT) -> str:
        """Return the kinds of numpy dtypes that features may have besides numbers, such as "U" for text."""
        return ""

    def label_rules(self, spec: SpecT) -> Rules:
        """Return what the loss accepts as labels, as far as it is known without creating the model."""
        return {}

    def needs_labels(self, spec: SpecT) -> bool:
        """Return whether training needs labels."""
        return True

    def needs_labels_to_evaluate(self, spec: SpecT) -> bool:
        """Return whether evaluation needs labels."""
        return True

    def metrics(self, spec: SpecT, metrics: object) -> list[Metric]:
        """Resolve what a user passes as ``metrics=``, adjusted to the model."""
        return self.tune_metrics(spec, resolve(metrics, adapt=self.adapt_metric, class_axis=self.class_axis))

    def adapt_metric(self, metric: object) -> Metric | list[Metric] | None:
        """Translate a metric object of the framework; None if it is not one."""
        return None

    def tune_metrics(self, spec: SpecT, metrics: list[Metric]) -> list[Metric]:
        """Adjust metrics to the model's loss, for example the decision threshold."""
        return metrics

    def score_name(self, spec: SpecT) -> str:
        """Return the metric of `score` for an estimator without metrics: "accuracy" or "r2"."""
        return "accuracy"

    def adapt_callback(self, callback: object) -> Callback | None:
        """Translate a callback object of the framework; None if it is not one."""
        return None

    def own_callbacks(self, spec: SpecT) -> Sequence[Callback]:
        """Return callbacks that the spec asks for; called once per estimator."""
        return ()

    def creator_arguments(self, config: Mapping[str, Any], batch_size: int) -> tuple[object, ...]:
        """Return the arguments of a data creator."""
        return dict(config), batch_size

    def default_seed(self, spec: SpecT) -> int | None:
        """Return the seed in the model's configuration, used if the estimator has none of its own."""
        return None

    def batch_size(self, spec: SpecT, requested: int | None) -> int:
        """Return the number of rows that `predict` passes to the model at once."""
        return 256 if requested is None else requested

    def outputs_like(self, spec: SpecT, features: Tree) -> Tree | None:
        """Return outputs without rows, of the right types, for such features, if they are known without computing."""
        return None

    def check_features(self, spec: SpecT, features: Tree) -> None:
        """Raise if the model does not accept such features, by their shapes; called on the driver."""

    def check_rows(self, spec: SpecT, rows: Mapping[str, Tree]) -> None:
        """Raise if the model does not accept such rows {"x", "y"}, by their shapes; called on the driver."""
        self.check_features(spec, rows["x"])


class Backend(ABC, Generic[SpecT]):
    """A framework with one synchronization strategy. Stateless and picklable."""

    name: str
    framework: Framework[SpecT]
    traits: Traits

    @abstractmethod
    def check(self, spec: SpecT, workers: int) -> None:
        """Raise on the driver what is certain to fail, before anything starts."""

    def check_fit(self, spec: SpecT, fit: FitCheck) -> None:
        """Raise on the driver if the model cannot be trained in this way."""
        if self.topology(spec, fit.workers).lockstep:
            return
        for name, trigger in (("checkpoint", fit.trigger), ("validation", fit.validation_trigger)):
            if trigger is not None and not isinstance(trigger, EveryEpoch):
                raise ArgumentError(
                    f"{name}_trigger={trigger!r}: asynchronous workers do not run in lockstep; use EveryEpoch()."
                )
        if any(isinstance(callback, RateSchedule) for callback in fit.callbacks):
            raise ArgumentError(
                "The optim method has a schedule or learningrate_decay: asynchronous workers do not run in lockstep; "
                'use a constant learning rate, or mode="sync".'
            )
        if any(isinstance(callback, LRScheduler) and callback.per == "step" for callback in fit.callbacks):
            raise ArgumentError(
                'LRScheduler(per="step"): asynchronous workers do not run in lockstep; use per="epoch".'
            )

    def check_evaluate(self, spec: SpecT) -> None:
        """Raise on the driver if the model cannot be evaluated."""

    def topology(self, spec: SpecT, workers: int) -> Topology:
        """Return the processes that train the model with a number of workers."""
        return Topology(workers)

    @abstractmethod
    def build(self, spec: SpecT, context: RankContext, seed: int, workers: int) -> Replica:
        """Create this rank's replica for training and evaluation, connected to the other ranks."""

    @abstractmethod
    def build_alone(self, spec: SpecT, seed: int, threads: int | None) -> Replica:
        """Create a replica for prediction only, without other ranks.

        `threads` is the number to use: None for as many as this process was given, 0 to leave the process as it is.
        """

    def in_parts(self, spec: SpecT) -> bool:
        """Whether ranks hold slices of the state, and write them to checkpoints themselves (`Replica.save_parts`)."""
        return False

    def notes(self, spec: SpecT) -> Sequence[str]:
        """Return lines for `explain()`."""
        return ()


__all__ = [
    "Backend",
    "FitCheck",
    "Framework",
    "Inputs",
    "Outcome",
    "OwnMetrics",
    "Replica",
    "Seat",
    "Spec",
    "State",
    "StepOptions",
    "Topology",
    "Traits",
    "Tree",
]
