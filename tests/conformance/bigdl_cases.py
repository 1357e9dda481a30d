"""The backends of BigDL layers as cases of the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from orca import Estimator
from orca.bigdl.nn.criterion import CrossEntropyCriterion, MSECriterion
from orca.bigdl.nn.layer import (
    BatchNormalization,
    ConcatTable,
    Dropout,
    JoinTable,
    Linear,
    Model,
    ReLU,
    Sequential,
    Tanh,
)
from orca.bigdl.optim.optimizer import SGD, Adam, Step
from orca.bigdl.util.common import RNG
from orca.testing import BackendCase
from orca.testing.cases import SEED


def network() -> Sequential:
    """Return a network that does not depend on how rows are grouped, with the same weights each time."""
    RNG().set_seed(SEED)
    return Sequential().add(Linear(6, 8)).add(Tanh()).add(Linear(8, 2))


class FromZero(CrossEntropyCriterion):
    """Cross entropy of the checks' labels, which count from 0."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return super().loss(output, target + 1)

    def label_rule(self) -> None:
        return None

    def row_weight(self, target: Any) -> None:
        return None


class FirstOutput(MSECriterion):
    """The squared error of the first of several outputs."""

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return super().loss(output[0][:, 0], target)


def case(backend: str) -> BackendCase:
    """A case for a backend."""

    def make(workers, **more):
        plain = {"model": network(), "optimizer": SGD(0.1, momentum=0.9, dampening=0.0), "loss": FromZero()}
        return Estimator.from_bigdl(backend=backend, workers=workers, **{**plain, **more})

    def noisy(workers, **more):
        RNG().set_seed(SEED)
        # Some width and three ranks: sums of three numbers show in the last bit in which order they were added.
        model = Sequential().add(Linear(6, 300)).add(BatchNormalization(300)).add(ReLU()).add(Dropout(0.3))
        method = SGD(0.01, momentum=0.9, leaningrate_schedule=Step(9, 0.5))
        return make(workers, model=model.add(Linear(300, 2)), optimizer=method, metrics=["accuracy", "auc"], **more)

    def several(workers):
        RNG().set_seed(SEED)
        left, right = Linear(2, 3)(), Linear(4, 3)()
        parts = ConcatTable().add(Linear(6, 1)).add(Linear(6, 2))
        model = Model([left, right], [parts(JoinTable(2, 2)([left, right]))])
        return make(workers, model=model, optimizer=Adam(0.05), loss=FirstOutput(), seed=0)

    return BackendCase(
        f"bigdl.{backend}",
        make,
        weights=lambda est: {str(n): value for n, value in enumerate(est.get_model().get_weights())},
        reference=reference,
        outputs=lambda est, x: est.get_model().evaluate().forward(x),
        scores=scores,
        noisy=noisy,
        several=several,
        sample_weights=False,
    )


def reference(batches: Any, seed: int) -> dict[str, Any]:
    module = network().module
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return {str(number): value.detach().numpy() for number, value in enumerate(module.parameters())}


def scores(est: Estimator, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> dict[str, float]:
    return {"loss": CrossEntropyCriterion().forward(est.get_model().evaluate().forward(x), y + 1)}


PLAIN = [case("parameter_server")]
VARIANTS = {
    case("torch_distributed"): ["empty_shard", "short_last_batch", "exact_scores", "resume_after_a_killed_rank"],
    case("horovod"): ["empty_shard", "exact_scores"],
}
"""The strategies are those of torch, whose cases run all checks."""
