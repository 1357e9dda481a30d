"""The torch backends: one replica, built with the synchronization strategy of the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from orca.backends.base import Backend, FitCheck, Topology, Traits
from orca.backends.torch import batch_norm
from orca.backends.torch.framework import TorchFramework
from orca.backends.torch.group import device
from orca.backends.torch.losses import unreduced
from orca.backends.torch.replica import TorchReplica
from orca.backends.torch.spec import TorchSpec
from orca.backends.torch.sync import Sync
from orca.core.arguments import check_choice, check_count
from orca.core.machine import granted_threads
from orca.errors import ArgumentError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

Join = Callable[["RankContext", TorchSpec, int], Sync]

# torch imports its compiler with the first optimizer step, which takes a second on every rank: do it once.
_PRELOAD = ("torch", "torch._dynamo", "orca.backends.torch", "orca.backends.worker.training", "orca.launch.exchange")


class TorchBackend(Backend[TorchSpec]):
    """Torch models, with replicas kept in sync by the `Sync` that `join` returns on each rank."""

    framework = TorchFramework()

    def __init__(
        self, name: str, join: Join, options: Sequence[str] = (), framework: TorchFramework | None = None,
        preload: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.name = name
        if framework is not None:
            self.framework = framework
        self.traits = Traits((*_PRELOAD, *preload), options=tuple(options))
        self._join = join

    def check(self, spec: TorchSpec, workers: int) -> None:
        spec.check()
        if spec.sync_options.get("sharded"):
            for name, value in (("compression", spec.sync_options.get("compression")), ("train_step", spec.train_step)):
                if value is not None:
                    raise ArgumentError(f"{name}= does not go together with sharded=True.")
        if self.name == "horovod" and spec.sync_options.get("compression") == "bf16":
            raise ArgumentError('compression="bf16": Horovod compresses to "fp16" only.')

    def check_fit(self, spec: TorchSpec, fit: FitCheck) -> None:
        required = ("optimizer",) if spec.train_step is not None else ("optimizer", "loss")
        missing = [name for name in required if getattr(spec, name) is None]
        if missing:
            needed = " and ".join(f"{name}=" for name in missing)
            raise ArgumentError(f"fit needs {needed} in from_{self.framework.name}.")
        super().check_fit(spec, fit)
        spec.check_training()
        if spec.train_step is not None:
            if fit.options.accumulate != 1:
                raise ArgumentError("accumulate= is not for train_step=, which does its own backward passes.")
            if fit.weighted:
                raise ArgumentError("sample_weight= and class_weight= belong to a loss; train_step= computes its own.")
        elif fit.weighted:
            unreduced(spec.make_loss())

    def build(self, spec: TorchSpec, context: RankContext, seed: int, workers: int) -> TorchReplica:
        place = context.place
        torch.set_num_threads(place.threads)
        context.once("torch.batch_norm", lambda: context.at_exit(batch_norm.forget))
        # The same seed on every rank gives the same first weights; each epoch then starts a stream per rank.
        torch.manual_seed(seed)
        model = spec.make_model()
        optimizer = spec.make_optimizer(model)
        loss = spec.make_loss()
        return TorchReplica(
            model,
            optimizer,
            loss,
            Sync() if place.world == 1 else self._join(context, spec, workers),
            device(context),
            precision=spec.precision,
            sync_batchnorm=spec.sync_batchnorm,
            train_step=spec.train_step,
        )

    def build_alone(self, spec: TorchSpec, seed: int, threads: int | None) -> TorchReplica:
        if threads != 0:
            torch.set_num_threads(threads or granted_threads())
        # Prediction may run in a process that trains as well: its random numbers must not be touched.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TorchReplica(spec.make_model(), None, None, precision=spec.precision)

    def in_parts(self, spec: TorchSpec) -> bool:
        return bool(spec.sync_options.get("sharded"))

    def notes(self, spec: TorchSpec) -> Sequence[str]:
        where = "cuda, NCCL; cpu, gloo if a host has more ranks than GPUs" if torch.cuda.is_available() else "cpu, gloo"
        lines = [f"torch {torch.__version__} ({where}), precision {spec.precision}"]
        if spec.sync_options:
            lines.append(", ".join(f"{name}={value}" for name, value in spec.sync_options.items()))
        return lines


class ServerBackend(TorchBackend):
    """The parameter server: synchronous on all ranks, or asynchronous with server ranks."""

    def topology(self, spec: TorchSpec, workers: int) -> Topology:
        if _is_async(spec):
            return Topology(workers + _servers(spec), lockstep=False)
        return Topology(workers)

    def check(self, spec: TorchSpec, workers: int) -> None:
        super().check(spec, workers)
        options = spec.sync_options
        mode = options.get("mode", "sync")
        check_choice("mode", mode, ("sync", "async"))
        if mode == "sync":
            for name in ("staleness", "servers"):
                if name in options:
                    raise ArgumentError(f'{name}= is for mode="async"; in sync mode all ranks own slices, in lockstep.')
        elif spec.sync_batchnorm:
            raise ArgumentError('sync_batchnorm=True needs ranks that run in lockstep: use mode="sync".')
        elif "compression" in options:
            raise ArgumentError('compression= is for mode="sync".')
        if options.get("staleness") is not None:
            check_count("staleness", options["staleness"], least=0)
        if "servers" in options:
            check_count("servers", options["servers"])
        spec.check_slices(workers)

    def notes(self, spec: TorchSpec) -> Sequence[str]:
        lines = list(super().notes(spec))
        if _is_async(spec):
            count = _servers(spec)
            word = "rank" if count == 1 else "ranks"
            lines.append(f"{count} server {word} after the workers; each push is one update")
        return lines


def _servers(spec: TorchSpec) -> int:
    return int(spec.sync_options.get("servers", 1))


def _is_async(spec: TorchSpec) -> bool:
    return bool(spec.sync_options.get("mode", "sync") == "async")
