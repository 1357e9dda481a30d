"""A model that sums the numbers of each row, in this process: what comes back shows which rows went in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orca.backends.base import Backend, Framework, Outcome, Replica, State, Traits
from orca.errors import DataError
from orca.estimator import Estimator
from orca.runs.values import Learned, Setup
from orca.shards.tree import leaves


@dataclass(frozen=True)
class EchoSpec:
    config: Mapping[str, Any] = field(default_factory=dict)

    def travels(self) -> Mapping[str, object]:
        return {}


class EchoFramework(Framework[EchoSpec]):
    name = "echo"
    inference_only = True

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> EchoSpec:
        return EchoSpec()

    def model(self, spec: EchoSpec, state: State | None, seed: int) -> Any:
        return None


class EchoReplica(Replica):
    def predict_step(self, features: Any) -> Any:
        total: Any = 0.0
        for name, leaf in leaves(features):
            if leaf.dtype.kind not in "biuf":
                raise DataError(f"{name} has dtype {leaf.dtype}; expected numbers.")
            with np.errstate(all="ignore"):
                total = total + leaf.reshape(len(leaf), -1).astype("f8").sum(axis=1)
        return total

    def train_step(self, batch: Any, want_output: bool) -> Outcome:
        raise NotImplementedError

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        raise NotImplementedError

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        pass

    def learning_rate(self) -> None:
        return None


class EchoBackend(Backend[EchoSpec]):
    name = "echo"
    framework = EchoFramework()
    traits = Traits()

    def check(self, spec: EchoSpec, workers: int) -> None:
        pass

    def build(self, spec: EchoSpec, context: Any, seed: int, workers: int) -> Replica:
        return EchoReplica()

    def build_alone(self, spec: EchoSpec, seed: int, threads: int | None) -> Replica:
        return EchoReplica()


def echo() -> Estimator:
    """Return an estimator that predicts in this process."""
    setup = Setup.create(EchoBackend(), EchoSpec())
    return Estimator(setup, Learned.nothing(setup, 0))
