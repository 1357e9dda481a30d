"""PyTorch: one replica, several synchronization strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orca.backends.torch.backend import ServerBackend, TorchBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orca.backends.torch.framework import TorchFramework
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


def strategies(
    framework: TorchFramework | None = None, preload: Sequence[str] = ()
) -> tuple[TorchBackend, TorchBackend, TorchBackend]:
    """Return the backends of a framework whose models are torch modules: torch_distributed, horovod, parameter_server.

    Args:
        framework: The framework; by default torch itself.
        preload: Further modules that ranks may find imported.
    """
    options = ("mode", "staleness", "servers", "compression")
    return (
        TorchBackend("torch_distributed", _data_parallel, ("sharded", "compression"), framework, preload),
        TorchBackend("horovod", _horovod, ("compression",), framework, preload),
        ServerBackend("parameter_server", _parameter_server, options, framework, preload),
    )


torch_distributed, horovod, parameter_server = strategies()

__all__ = ["TorchBackend", "horovod", "parameter_server", "strategies", "torch_distributed"]
