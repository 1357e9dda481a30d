"""The torch backends as the estimator sees them: one replica, built with the sync that the backend names."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from orca.backends.base import Backend, State
from orca.backends.torch.group import device
from orca.backends.torch.losses import one_by_one
from orca.backends.torch.replica import TorchReplica
from orca.backends.torch.spec import TorchSpec
from orca.backends.torch.state import to_torch
from orca.backends.torch.sync import Sync
from orca.errors import ArgumentError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric

Join = Callable[["RankContext", TorchSpec], Sync]


class TorchBackend(Backend):
    """Torch models, with replicas kept in sync by what `join` returns on each rank."""

    framework = "torch"
    # torch imports its compiler with the first optimizer step, which takes a second on every rank: do it once.
    preload = ("torch", "torch._dynamo", "orca.backends.torch", "orca.backends.worker.training", "orca.launch.exchange")
    class_axis = 1

    def __init__(self, name: str, join: Join, options: Sequence[str] = ()) -> None:
        self.name = name
        self._join = join
        self.options = tuple(options)

    def check(self, spec: TorchSpec, workers: int) -> None:
        spec.check()
        self.check_options(spec.sync_options)

        if spec.sync_options.get("sharded"):
            for name, value in (("compression", spec.sync_options.get("compression")), ("train_step", spec.train_step)):
                if value is not None:
                    raise ArgumentError(f"{name}= does not go together with sharded=True.")
        if self.name == "horovod" and spec.sync_options.get("compression") == "bf16":
            raise ArgumentError('compression="bf16": Horovod compresses to "fp16" only.')

    def check_fit(self, spec: TorchSpec) -> None:
        needed = ("optimizer",) if spec.train_step is not None else ("optimizer", "loss")
        missing = [name for name in needed if getattr(spec, name) is None]
        if missing:
            raise ArgumentError(f"fit needs {' and '.join(f'{name}=' for name in missing)} in from_torch.")

    def check_weights(self, spec: TorchSpec) -> None:
        one_by_one(spec.make_loss())

    def build(self, spec: TorchSpec, context: RankContext, seed: int) -> TorchReplica:
        place = context.place
        torch.set_num_threads(place.threads)
        # The same seed on every rank gives the same first weights; each epoch then starts a stream per rank.
        torch.manual_seed(seed)
        model = spec.make_model()
        optimizer = spec.make_optimizer(model)
        loss = spec.make_loss()
        alone = place.world == 1
        return TorchReplica(
            model,
            optimizer,
            loss,
            Sync() if alone else self._join(context, spec),
            device(context),
            precision=spec.precision,
            sync_batchnorm=spec.sync_batchnorm,
            train_step=spec.train_step,
        )

    def build_alone(self, spec: TorchSpec, seed: int, threads: int | None) -> TorchReplica:
        if threads != 0:
            torch.set_num_threads(threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
        # Prediction may run in a process that trains as well: its random numbers must not be touched.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TorchReplica(spec.make_model(), None, None, precision=spec.precision)

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

    def state_dict(self, state: State) -> dict[str, Any]:
        return dict(to_torch(state["model"]))

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        from orca.backends.torch.export import export

        return export(model, kind, path, example)

    def input_count(self, spec: TorchSpec) -> int | None:
        return spec.input_count()

    def adapt_metric(self, metric: object) -> Metric | list[Metric] | None:
        from orca.backends.torch.metrics import adapt

        return adapt(metric)

    def tune_metrics(self, spec: TorchSpec, metrics: list[Metric]) -> list[Metric]:
        if not isinstance(spec.known_loss(), torch.nn.BCEWithLogitsLoss):
            return metrics
        # This loss takes logits: the border between the two classes is 0, not 0.5.
        return [
            dataclasses.replace(metric, threshold=0.0) if getattr(metric, "threshold", None) == 0.5 else metric  # type: ignore[type-var]
            for metric in metrics
        ]

    def score_name(self, spec: TorchSpec) -> str:
        losses = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss, torch.nn.BCELoss, torch.nn.BCEWithLogitsLoss)
        return "accuracy" if isinstance(spec.known_loss(), losses) else "r2"

    def notes(self, spec: TorchSpec) -> Sequence[str]:
        where = "cuda, NCCL; cpu, gloo if a host has more ranks than GPUs" if torch.cuda.is_available() else "cpu, gloo"
        lines = [f"torch {torch.__version__} ({where}), precision {spec.precision}"]
        if spec.sync_options:
            lines.append(", ".join(f"{name}={value}" for name, value in spec.sync_options.items()))
        return lines


class ServerBackend(TorchBackend):
    """The parameter server: in step on all ranks, or asynchronous with servers of their own."""

    def ranks(self, spec: TorchSpec, workers: int) -> int:
        return workers + (self.servers(spec) if self._is_async(spec) else 0)

    def keeps_step(self, spec: TorchSpec) -> bool:
        return not self._is_async(spec)

    @staticmethod
    def servers(spec: TorchSpec) -> int:
        return int(spec.sync_options.get("servers", 1))

    @staticmethod
    def _is_async(spec: TorchSpec) -> bool:
        return bool(spec.sync_options.get("mode", "sync") == "async")

    def check(self, spec: TorchSpec, workers: int) -> None:
        super().check(spec, workers)
        options = spec.sync_options
        mode = options.get("mode", "sync")
        if mode not in ("sync", "async"):
            raise ArgumentError(f'mode={mode!r}: expected "sync" or "async".')
        if mode == "sync":
            for name in ("staleness", "servers"):
                if name in options:
                    raise ArgumentError(f'{name}= is for mode="async"; in sync mode all ranks own slices, in step.')
        elif spec.sync_batchnorm:
            raise ArgumentError('sync_batchnorm=True needs ranks that keep step: use mode="sync".')
        elif "compression" in options:
            raise ArgumentError('compression= is for mode="sync".')
        for name, least in (("staleness", 0), ("servers", 1)):
            value = options.get(name, least)
            if name == "staleness" and value is None:
                continue  # no limit
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(f"{name}={value!r}: expected a whole number of at least {least}.")
        if spec.train_step is not None:
            raise ArgumentError(
                'train_step= brings its own optimizer steps: use backend="torch_distributed" or "horovod".'
            )
        from orca.backends.torch.server_sync import check_optimizer

        if isinstance(spec.optimizer, torch.optim.Optimizer | type):
            check_optimizer(spec.optimizer)

    def notes(self, spec: TorchSpec) -> Sequence[str]:
        lines = list(super().notes(spec))
        if self._is_async(spec):
            count = self.servers(spec)
            word = "rank" if count == 1 else "ranks"
            lines.append(f"{count} server {word} after the workers; each push is one update")
        return lines
