"""How torch replicas agree on gradients: alone, or with DistributedDataParallel over gloo or NCCL."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


class Sync(Protocol):
    """Makes the gradients of all ranks one."""

    world: int

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Any:
        """Connect a model; return what to call for its forward pass."""

    def after_backward(self, model: nn.Module, forward: Any) -> Any:
        """Agree on gradients that are not agreed on yet; return what to call in the next forward pass."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a number over all ranks."""

    def settle(self, model: nn.Module) -> None:
        """Give all ranks the buffers (running statistics) of rank 0."""


class Alone:
    """One rank: nothing to agree on."""

    world = 1

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> nn.Module:
        return model

    def after_backward(self, model: nn.Module, forward: Any) -> Any:
        return forward

    def total(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def settle(self, model: nn.Module) -> None:
        return None


class DataParallel:
    """DistributedDataParallel: gradients are averaged while the backward pass still runs.

    The first step goes without it and averages by hand, which shows whether the model has parameters that its
    forward pass does not use. Only then DDP is told to look for such, which costs a little in every step.
    """

    def __init__(self, world: int) -> None:
        self.world = world

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> nn.Module:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor, src=0)
        return model

    def after_backward(self, model: nn.Module, forward: Any) -> Any:
        if forward is not model:
            return forward
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            return forward
        used = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.float32)
        dist.all_reduce(used)
        for parameter, ranks in zip(trained, used.tolist(), strict=True):
            if ranks:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.world
        unused = bool((used < self.world).any())
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    def settle(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def distributed_data_parallel(context: RankContext) -> Sync:
    """Join the gang's process group, made once per process, and sync over it."""
    if context.place.world == 1:
        return Alone()
    if "torch.group" not in context.memory:
        context.memory["torch.group"] = _join(context)
        context.at_exit(dist.destroy_process_group)
    return DataParallel(context.place.world)


def _join(context: RankContext) -> bool:
    place = context.place
    interface = _interface(place.address)
    if interface is not None:
        # gloo would otherwise look the host name up, which need not resolve to an address the others reach.
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    patience = datetime.timedelta(minutes=30)
    store: dist.TCPStore | None = None
    if place.rank == 0:
        # Port 0: the system picks a free port and the store holds it, so nobody can take it in between.
        store = dist.TCPStore(place.address, 0, is_master=True, wait_for_workers=False, timeout=patience)
    address, port = context.allgather((place.address, store.port if store is not None else 0))[0]
    if store is None:
        store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=patience)
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.world,
        timeout=patience,
    )
    return True


def _interface(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None
