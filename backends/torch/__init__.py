"""PyTorch: one replica, several synchronization strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orca.backends.torch.backend import ServerBackend, TorchBackend

if TYPE_CHECKING:
    from orca.backends.torch.spec import TorchSpec
    from orca.backends.torch.sync import Sync
    from orca.launch.rank import RankContext


def _data_parallel(context: RankContext, spec: TorchSpec, workers: int) -> Sync:
    from torch.distributed import new_group

    from orca.backends.torch.data_parallel import DataParallel, Sharded
    from orca.backends.torch.group import join

    join(context)
    if spec.sync_options.get("sharded"):
        return Sharded(context.place.world)
    # Layers that wait for other ranks in the backward pass need not meet the messages of gradients in the same order.
    group = context.once("torch.gradients", new_group) if spec.sync_batchnorm else None
    return DataParallel(context.place.world, spec.sync_options.get("compression"), group)


def _horovod(context: RankContext, spec: TorchSpec, workers: int) -> Sync:
    from orca.backends.torch.horovod_sync import Horovod, join

    join(context)
    return Horovod(context.place.world, spec.sync_options.get("compression"))


def _parameter_server(context: RankContext, spec: TorchSpec, workers: int) -> Sync:
    from orca.backends.torch.group import join
    from orca.backends.torch.server_async import AsyncServer
    from orca.backends.torch.server_sync import ParameterServer

    join(context)
    place, options = context.place, spec.sync_options
    if options.get("mode") == "async":
        return AsyncServer(workers, place.world - workers, place.rank, options.get("staleness"))
    return ParameterServer(place.world, place.rank, options.get("compression"))


torch_distributed = TorchBackend("torch_distributed", _data_parallel, ("sharded", "compression"))
horovod = TorchBackend("horovod", _horovod, ("compression",))
parameter_server = ServerBackend("parameter_server", _parameter_server, ("mode", "staleness", "servers", "compression"))

__all__ = ["TorchBackend", "horovod", "parameter_server", "torch_distributed"]
