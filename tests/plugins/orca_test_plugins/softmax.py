"""A backend for Orca: softmax regression in numpy, trained with SGD on gradients gathered from all ranks.

est = Estimator.from_backend("softmax.gathered", features=6, classes=2, rate=0.1, workers=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.backends.base import Backend, FitCheck, Framework, Outcome, Replica, State, StepOptions, Traits
from orca.errors import ArgumentError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.shards.feed import Batch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SoftmaxSpec:
    """The arguments of `from_backend`."""

    features: int
    classes: int
    rate: float = 0.1
    config: Mapping[str, Any] = field(default_factory=dict)

    def travels(self) -> Mapping[str, object]:
        return {}

    def first_weights(self, seed: int) -> Array:
        return np.random.default_rng(seed).normal(size=(self.features, self.classes))


class Softmax(Framework[SoftmaxSpec]):
    name = "softmax"
    arguments = ("features", "classes", "rate")

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> SoftmaxSpec:
        return SoftmaxSpec(**arguments)

    def model(self, spec: SoftmaxSpec, state: State | None, seed: int) -> Array:
        return spec.first_weights(seed) if state is None else np.array(state["model"]["weights"])


class Gathered(Backend[SoftmaxSpec]):
    """Ranks exchange gradients with `RankContext.allgather`, which is fine for small models."""

    name = "gathered"
    framework = Softmax()
    traits = Traits(preload=("orca_test_plugins.softmax", "orca.backends.worker.training"), rendezvous="the driver")

    def check(self, spec: SoftmaxSpec, workers: int) -> None:
        if spec.classes < 2:
            raise ArgumentError(f"classes={spec.classes}: expected at least 2.")

    def check_fit(self, spec: SoftmaxSpec, fit: FitCheck) -> None:
        super().check_fit(spec, fit)
        if fit.weighted or fit.options != StepOptions():
            raise ArgumentError("softmax supports neither weighted rows nor accumulate=, clip_norm= and clip_value=.")

    def build(self, spec: SoftmaxSpec, context: RankContext, seed: int, workers: int) -> Replica:
        return SoftmaxReplica(spec, spec.first_weights(seed), context)

    def build_alone(self, spec: SoftmaxSpec, seed: int, threads: int | None) -> Replica:
        return SoftmaxReplica(spec, spec.first_weights(seed))


class SoftmaxReplica(Replica):
    """One rank's copy of the weights."""

    def __init__(self, spec: SoftmaxSpec, weights: Array, context: RankContext | None = None) -> None:
        self._spec, self._weights, self._context = spec, weights, context

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        x, y = batch.data["x"], batch.data["y"]
        outcome, error = self._score(x, y)
        # A rank without rows of its own in this step gets others' rows, which do not count.
        mine = np.zeros_like(self._weights) if batch.filler else x.T @ error
        gradient = sum(self._gather(mine)) / batch.total
        self._weights = self._weights - self._spec.rate * gradient
        return Outcome(0.0, 0.0) if batch.filler else outcome

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        return self._score(data["x"], data["y"])[0]

    def predict_step(self, features: Array) -> Array:
        scores = np.exp(features @ self._weights)
        return scores / scores.sum(axis=1, keepdims=True)

    def state(self) -> State:
        return {"model": {"weights": self._weights}, "optimizer": {}}

    def load_state(self, state: State) -> None:
        self._weights = np.array(state["model"]["weights"])

    def learning_rate(self) -> float:
        return self._spec.rate

    def any(self, flag: bool) -> bool:
        return any(self._gather(flag))

    def _gather(self, value: Any) -> list[Any]:
        return [value] if self._context is None else self._context.allgather(value)

    def _score(self, x: Array, y: Array) -> tuple[Outcome, Array]:
        """Return the summed loss of rows with their outputs, and the error of each output."""
        output = self.predict_step(x)
        loss = -np.log(output[np.arange(len(y)), y]).sum()
        return Outcome(float(loss), float(len(y)), y, output), output - np.eye(self._spec.classes)[y]


gathered = Gathered()
