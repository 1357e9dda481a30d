"""A backend without a framework: logistic regression in numpy, for checks of runtimes and adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.backends.base import Backend, FitCheck, Framework, Outcome, Replica, State, StepOptions, Traits
from orca.errors import ArgumentError
from orca.testing.cases import FEATURES, Array, BackendCase, Batches, Weights

if TYPE_CHECKING:
    from orca.estimator import Estimator
    from orca.launch.rank import RankContext
    from orca.shards.feed import Batch


@dataclass(frozen=True)
class LinearSpec:
    """Settings of the model."""

    features: int = FEATURES
    rate: float = 0.1
    momentum: float = 0.9
    config: Mapping[str, Any] = field(default_factory=dict)

    def travels(self) -> Mapping[str, object]:
        return {}


class LinearFramework(Framework[LinearSpec]):
    """What all backends of the model share."""

    name = "linear"
    arguments = ("features", "rate", "momentum")

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> LinearSpec:
        return LinearSpec(**arguments)

    def model(self, spec: LinearSpec, state: State | None, seed: int) -> Array:
        weights: Array = first_weights(spec, seed) if state is None else np.array(state["model"]["weights"])
        return weights


class LinearBackend(Backend[LinearSpec]):
    """Ranks gather each other's gradients by way of the driver."""

    name = "gathered"
    framework = LinearFramework()
    traits = Traits(preload=("orca.testing.linear", "orca.backends.worker.training"), rendezvous="the driver")

    def check(self, spec: LinearSpec, workers: int) -> None:
        if spec.features < 1:
            raise ArgumentError(f"features={spec.features}: expected at least 1.")

    def check_fit(self, spec: LinearSpec, fit: FitCheck) -> None:
        super().check_fit(spec, fit)
        if fit.options != StepOptions(class_weight=fit.options.class_weight):
            raise ArgumentError("accumulate=, clip_norm= and clip_value= are not supported by linear.gathered.")

    def build(self, spec: LinearSpec, context: RankContext, seed: int, workers: int) -> Replica:
        return LinearReplica(spec, seed, context)

    def build_alone(self, spec: LinearSpec, seed: int, threads: int | None) -> Replica:
        return LinearReplica(spec, seed)


class LinearReplica(Replica):
    """One copy of the weights; the last one is the bias."""

    def __init__(self, spec: LinearSpec, seed: int, context: RankContext | None = None) -> None:
        self._spec, self._context = spec, context
        self._weights = first_weights(spec, seed)
        self._velocity = np.zeros_like(self._weights)
        self._options = StepOptions()

    def configure(self, options: StepOptions) -> None:
        self._options = options

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        outcome, gradient = self._score(batch.data, self._options.class_weight, 0.0 if batch.filler else 1.0)
        gathered = self._gather((gradient, outcome.loss_count))
        total = sum(count for _, count in gathered)
        mean = sum(part for part, _ in gathered) / total
        self._velocity = self._spec.momentum * self._velocity - self._spec.rate * mean
        self._weights = self._weights + self._velocity
        return outcome if want_output and not batch.filler else Outcome(outcome.loss_sum, outcome.loss_count)

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        return self._score(data)[0]

    def predict_step(self, features: Any) -> Any:
        return forward(self._weights, features)

    def state(self) -> State:
        return {"model": {"weights": self._weights}, "optimizer": {"velocity": self._velocity}}

    def load_state(self, state: State) -> None:
        self._weights = np.array(state["model"]["weights"])
        optimizer = state.get("optimizer") or {"velocity": np.zeros_like(self._weights)}
        self._velocity = np.array(optimizer["velocity"])

    def learning_rate(self) -> float:
        return self._spec.rate

    def any(self, flag: bool) -> bool:
        return any(self._gather(flag))

    def _gather(self, value: Any) -> list[Any]:
        return [value] if self._context is None else self._context.allgather(value)

    def _score(
        self, data: Any, classes: Mapping[int, float] | None = None, scale: float = 1.0
    ) -> tuple[Outcome, Array]:
        """Return loss and outputs of rows, and the sum of their gradients."""
        x, y = data["x"], data["y"].reshape(-1)
        weight = scale * np.asarray(data.get("w", np.ones(len(y))), "f8")
        if classes:
            weight = weight * np.select([y == label for label in classes], list(classes.values()), 1.0)
        output = forward(self._weights, x)
        gradient = extended(x).T @ (weight * (output[:, 0] - y))
        return Outcome(float((weight * losses(output, y)).sum()), float(weight.sum()), y, output), gradient


def first_weights(spec: LinearSpec, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=spec.features + 1)


def extended(x: Array) -> Array:
    """Rows with a constant for the bias."""
    return np.column_stack([np.asarray(x, "f8"), np.ones(len(x))])


def forward(weights: Array, x: Array) -> Array:
    """The probability of class 1 for each row, as a column."""
    output: Array = 1 / (1 + np.exp(-(extended(x) @ weights)))[:, None]
    return output


def losses(output: Array, y: Array) -> Array:
    """The cross-entropy of each row."""
    return -np.log(np.where(y == 1, output[:, 0], 1 - output[:, 0]))


def train(batches: Batches, seed: int) -> Weights:
    """Train in this process, without Orca."""
    spec = LinearSpec()
    weights = first_weights(spec, seed)
    velocity = np.zeros_like(weights)
    for x, y in batches:
        gradient = extended(x).T @ (forward(weights, x)[:, 0] - y) / len(x)
        velocity = spec.momentum * velocity - spec.rate * gradient
        weights = weights + velocity
    return {"weights": weights}


def make(workers: int, **more: Any) -> Estimator:
    """Return an estimator of the model."""
    from orca.estimator import Estimator
    from orca.runs.values import Learned, Setup

    seed = more.pop("seed", None)
    setup = Setup.create(LINEAR, LinearSpec(), workers=workers, **more)
    return Estimator(setup, Learned.nothing(setup, seed))


LINEAR = LinearBackend()
LINEAR_CASE = BackendCase(
    "linear.gathered",
    make,
    weights=lambda est: {"weights": est.get_model()},
    reference=train,
    outputs=lambda est, x: forward(est.get_model(), x),
    scores=lambda est, x, y: {"loss": float(losses(forward(est.get_model(), x), y).mean())},
)
