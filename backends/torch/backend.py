"""The torch backends as the estimator sees them: one replica, built with the sync the backend names."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from orca.backends.base import Backend, State
from orca.backends.torch.replica import TorchReplica
from orca.backends.torch.spec import TorchSpec
from orca.backends.torch.state import to_torch
from orca.backends.torch.sync import Sync
from orca.errors import ArgumentError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


class TorchBackend(Backend):
    """Torch models, with gradients kept in sync by what `join` returns on each rank."""

    framework = "torch"
    # torch imports its compiler with the first optimizer step, which takes a second on every rank: do it once.
    preload = ("torch", "torch._dynamo", "orca.backends.torch", "orca.backends.loop", "orca.shards.exchange")
    class_axis = 1

    def __init__(self, name: str, join: Callable[[RankContext], Sync]) -> None:
        self.name = name
        self._join = join

    def check(self, spec: TorchSpec, workers: int) -> None:
        spec.check()

    def check_fit(self, spec: TorchSpec) -> None:
        missing = [name for name in ("optimizer", "loss") if getattr(spec, name) is None]
        if missing:
            raise ArgumentError(f"fit needs {' and '.join(f'{name}=' for name in missing)} in from_torch.")

    def build(self, spec: TorchSpec, context: RankContext, seed: int) -> TorchReplica:
        place = context.place
        torch.set_num_threads(place.threads)
        # The same seed on every rank gives the same first weights; each epoch then starts a stream per rank.
        torch.manual_seed(seed)
        model = spec.make_model()
        optimizer = spec.make_optimizer(model)
        loss = spec.make_loss()
        device = torch.device("cuda", place.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        return TorchReplica(model, optimizer, loss, self._join(context), device)

    def build_alone(self, spec: TorchSpec, seed: int, threads: int | None) -> TorchReplica:
        torch.set_num_threads(threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
        # Prediction may run in a process that trains as well: its random numbers must not be touched.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TorchReplica(spec.make_model(), None, None)

    def model(self, spec: TorchSpec, state: State | None, seed: int) -> torch.nn.Module:
        torch_state = torch.random.get_rng_state()
        try:
            torch.manual_seed(seed)
            # The user's own object stays as it was.
            model = copy.deepcopy(spec.model) if isinstance(spec.model, torch.nn.Module) else spec.make_model()
        finally:
            torch.random.set_rng_state(torch_state)
        if state is not None:
            model.load_state_dict(to_torch(state["model"]))
        return model

    def input_count(self, spec: TorchSpec) -> int | None:
        return spec.input_count()

    def tune_metrics(self, spec: TorchSpec, metrics: list[Metric]) -> list[Metric]:
        logits = torch.nn.BCEWithLogitsLoss
        if not (isinstance(spec.loss, logits) or spec.loss is logits):
            return metrics
        # This loss takes logits: the border between the two classes is 0, not 0.5.
        return [
            dataclasses.replace(metric, threshold=0.0) if getattr(metric, "threshold", None) == 0.5 else metric  # type: ignore[type-var]
            for metric in metrics
        ]

    def notes(self, spec: TorchSpec) -> Sequence[str]:
        device = "cuda, NCCL" if torch.cuda.is_available() else "cpu, gloo"
        return (f"torch {torch.__version__} ({device})",)
