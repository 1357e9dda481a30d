"""The MXNet backends: one replica, built with the synchronization strategy of the backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import mxnet as mx
import numpy as np
from mxnet.base import _LIB

from orca.backends.base import Backend, FitCheck, Replica, Topology, Traits
from orca.backends.mxnet.framework import MXNetFramework, seed_mxnet
from orca.backends.mxnet.kvstore import role
from orca.backends.mxnet.nets import GluonNet
from orca.backends.mxnet.replica import MXNetReplica, ServingReplica
from orca.backends.mxnet.spec import MXNetSpec
from orca.backends.mxnet.symbol_net import SymbolNet
from orca.backends.mxnet.sync import Sync
from orca.core.arguments import check_count
from orca.core.machine import granted_threads
from orca.errors import ArgumentError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

Join = Callable[["RankContext", MXNetSpec, int], Sync]

_TRAITS = Traits(
    preload=("mxnet", "orca.backends.mxnet.strategies", "orca.backends.worker.training", "orca.launch.exchange"),
    preload_shared=False,
    exclusive=True,
    gpus=False,
)


class MXNetBackend(Backend[MXNetSpec]):
    """MXNet models, with replicas kept in sync by the `Sync` that `join` returns on each rank."""

    framework = MXNetFramework()
    traits = _TRAITS

    def __init__(self, name: str, join: Join) -> None:
        self.name = name
        self._join = join

    def check(self, spec: MXNetSpec, workers: int) -> None:
        spec.check()
        if self.name == "horovod" and workers > 1:
            from orca.backends.mxnet.horovod_sync import check_installed

            check_installed()

    def check_fit(self, spec: MXNetSpec, fit: FitCheck) -> None:
        if spec.loss_creator is None and isinstance(spec.known_net(), GluonNet):
            raise ArgumentError(
                "fit needs loss_creator= in from_mxnet: a function fn(config) that returns a gluon loss."
            )
        super().check_fit(spec, fit)
        if fit.weighted and isinstance(spec.known_net(), SymbolNet):
            raise ArgumentError("sample_weight= and class_weight= are for Gluon models: a Symbol brings its own loss.")

    def build(self, spec: MXNetSpec, context: RankContext, seed: int, workers: int) -> Replica:
        use_threads(context.place.threads)
        join = (lambda: self._join(context, spec, workers)) if context.place.world > 1 else None
        if context.place.rank >= workers:
            assert join is not None
            return ServingReplica(join, workers)
        # The same seed on every rank gives the same first weights; each epoch then starts a stream per rank.
        seed_mxnet(seed)
        np.random.seed(seed % 2**32)
        net = spec.make_net()
        return MXNetReplica(net, spec.make_optimizer(net), seed, join, workers)

    def build_alone(self, spec: MXNetSpec, seed: int, threads: int | None) -> MXNetReplica:
        if threads != 0:
            use_threads(threads or granted_threads())
        seed_mxnet(seed)
        return MXNetReplica(spec.make_net(), None, seed)

    def notes(self, spec: MXNetSpec) -> Sequence[str]:
        return [f"MXNet {mx.__version__} (legacy), cpu"]


class ServerBackend(MXNetBackend):
    """MXNet's KVStore: servers and a scheduler run beside the workers."""

    traits = replace(_TRAITS, rendezvous="a port held by the scheduler", options=("kvstore", "num_servers"))

    def check(self, spec: MXNetSpec, workers: int) -> None:
        super().check(spec, workers)
        if spec.sync_options.get("num_servers") is not None:
            check_count("num_servers", spec.sync_options["num_servers"])

    def topology(self, spec: MXNetSpec, workers: int) -> Topology:
        lockstep = spec.kvstore != "dist_async"
        servers = spec.servers(workers)
        if not servers:
            return Topology(workers, lockstep=lockstep)
        kinds = [role(rank, workers, servers) for rank in range(workers + servers + 1)]
        roles = [
            kind if kind == "scheduler" else f"{kind} {kinds[:rank].count(kind)}" for rank, kind in enumerate(kinds)
        ]
        return Topology(len(kinds), tuple(roles), lockstep)

    def notes(self, spec: MXNetSpec) -> Sequence[str]:
        return [
            *super().notes(spec),
            f"KVStore {spec.kvstore}; servers and the scheduler are the ranks after the workers",
        ]


def use_threads(count: int) -> None:
    """Set the number of threads of MXNet; in a forked process it would use one."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    _LIB.MXSetNumOMPThreads(count)
