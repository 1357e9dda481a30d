"""The torch backends as cases of the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from orca import Estimator
from orca.testing import BackendCase
from tests.conformance.models import model_creator, optimizer_creator


class Network(nn.Module):
    """With dropout and batch norm, whose random numbers and statistics a checkpoint has to hold.

    Three ranks and some width: sums of three numbers show in the last bit in which order they were added.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(0.3), nn.Linear(300, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(4, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        joined = self.left(left) + self.right(right)
        return {"score": joined[:, :1], "rest": joined[:, 1:]}


def score_loss(output, target):
    return nn.functional.mse_loss(output["score"][:, 0], target)


def case(
    backend: str, variant: str = "", loss: nn.Module | None = None, flags: dict[str, Any] | None = None, **options
):
    """A case for a backend with these options of from_torch."""
    criterion = loss or nn.CrossEntropyLoss()

    def make(workers, **more):
        plain = {"model": model_creator, "optimizer": optimizer_creator, "loss": criterion, "config": {"lr": 0.1}}
        return Estimator.from_torch(backend=backend, workers=workers, **{**plain, **options, **more})

    def noisy(workers, **more):
        return make(
            workers,
            model=Network,
            optimizer=torch.optim.Adam,
            config={"lr": 0.01},
            metrics=["accuracy", "auc"],
            scheduler_creator=lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 9, gamma=0.5),
            scheduler_step="step",
            **more,
        )

    def several(workers):
        return make(workers, model=TwoInputs, optimizer=torch.optim.SGD, loss=score_loss, config={"lr": 0.05}, seed=0)

    def reference(batches, seed):
        torch.manual_seed(seed)
        model = model_creator({})
        optimizer = optimizer_creator(model, {"lr": 0.1})
        for x, y in batches:
            optimizer.zero_grad()
            criterion(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimizer.step()
        return {name: value.numpy() for name, value in model.state_dict().items()}

    def scores(est, x, y):
        with torch.no_grad():
            return {"loss": criterion(est.get_model().eval()(torch.from_numpy(x)), torch.from_numpy(y)).item()}

    return BackendCase(
        f"torch.{backend}",
        make,
        variant=variant,
        weights=lambda est: {name: value.numpy() for name, value in est.get_model().state_dict().items()},
        reference=reference,
        outputs=outputs,
        scores=scores,
        noisy=noisy,
        several=several,
        **(flags or {}),
    )


def outputs(est: Estimator, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return est.get_model().eval()(torch.from_numpy(x)).numpy()


PLAIN = [case("torch_distributed"), case("horovod"), case("parameter_server")]
LAYOUTS = ["empty_shard", "short_last_batch", "last_batch_of_one"]
RESUME = ["save_and_load", "resume_after_a_killed_rank", "resume_from_a_checkpoint", "fewer_workers"]
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 3.0]))
ASYNC = {"lockstep": False, "servers": True}
VARIANTS = {
    case("torch_distributed", "sharded", sharded=True): [*LAYOUTS, *RESUME, "exact_scores"],
    case("torch_distributed", "class weights", loss=WEIGHTED): ["short_last_batch", "exact_scores"],
    case("horovod", "class weights", loss=WEIGHTED): ["short_last_batch", "exact_scores"],
    case("parameter_server", "class weights", loss=WEIGHTED): ["short_last_batch", "exact_scores"],
    case("parameter_server", "async", mode="async", flags=ASYNC): [
        *LAYOUTS,
        *["exact_scores", "learns_asynchronously", "predict_arrays"],
        *["raised_error", "killed_rank", "stopped_rank", "killed_server", "fixed_workers"],
    ],
    case("parameter_server", "async, 2 servers", mode="async", servers=2, staleness=1, flags=ASYNC): [
        *["learns_asynchronously", "exact_scores", "killed_server"],
    ],
}
