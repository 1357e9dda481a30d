"""Horovod: its distributed optimizer over gloo, with the rendezvous kept by rank 0 of the gang."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from orca.backends.torch.group import interface
from orca.backends.torch.sync import Sync, Usage, flat_average

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


_FUSION = "HOROVOD_FUSION_THRESHOLD"
_GIVEN = os.environ.get(_FUSION)
_APART, _TOGETHER = 0, 128 * 1024 * 1024
"""Left alone, Horovod joins tensors into messages as they happen to come, and the sum of three numbers depends on
where in a message they stand. From three ranks on each tensor is a message, so that results repeat; set the
variable yourself for speed instead. Horovod keeps the last value given in a process for all later gangs of it, and
ranks with different values break each other's messages: it is always given."""


def join(context: RankContext) -> None:
    """Have Horovod running in this process as a member of the gang."""
    if "horovod" in context.memory:
        return
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    place = context.place
    server = None
    port = 0
    everyone = context.allgather((place.host, place.address))
    # Hosts in the order of their first rank; a host's name stands for its address, which is what is reachable.
    hosts = list(dict.fromkeys(address for _, address in everyone))
    counts = {address: sum(1 for _, other in everyone if other == address) for address in hosts}
    if place.rank == 0:
        server = RendezvousServer(verbose=0)
        port = server.start()
        assignments = get_host_assignments(
            parse_hosts(",".join(f"{address}:{counts[address]}" for address in hosts)), place.world
        )
        server.init(assignments)
    address, port = context.allgather((place.address, port))[0]
    variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface(place.address) or "",
        "HOROVOD_HOSTNAME": place.address,
        "HOROVOD_RANK": place.rank,
        "HOROVOD_SIZE": place.world,
        "HOROVOD_LOCAL_RANK": place.local_rank,
        "HOROVOD_LOCAL_SIZE": place.local_world,
        "HOROVOD_CROSS_RANK": hosts.index(place.address),
        "HOROVOD_CROSS_SIZE": len(hosts),
    }
    os.environ.update({name: str(value) for name, value in variables.items() if value != ""})
    os.environ[_FUSION] = _GIVEN or str(_APART if place.world > 2 else _TOGETHER)
    import horovod.torch as hvd

    hvd.init()
    context.memory["horovod"] = True
    if server is not None:
        context.at_exit(server.stop)
    context.at_exit(hvd.shutdown)


class Horovod(Sync):
    """hvd.DistributedOptimizer: gradients are averaged while the backward pass still runs."""

    def __init__(self, world: int, compression: str | None = None) -> None:
        super().__init__()
        import horovod.torch as hvd

        self._hvd = hvd
        self.world = world
        self._compression = hvd.Compression.fp16 if compression == "fp16" else hvd.Compression.none
        self._unused: list[nn.Parameter] | None = None

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        hvd = self._hvd
        self.share(model)
        kept = optimizer.state_dict() if optimizer.state else None
        wrapped = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=_named(model, optimizer),
            compression=self._compression,
            op=hvd.Average,
        )
        if kept is not None:
            wrapped.load_state_dict(kept)
        super().attach(model, wrapped)

    def share(self, model: nn.Module) -> None:
        with torch.no_grad():
            for value in (*model.parameters(), *model.buffers()):
                value.data = value.data.contiguous()  # Horovod takes no other layout
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def expect(self, pieces: int) -> None:
        # Horovod counts backward passes down to the one that has to communicate.
        optimizer: Any = self.optimizer
        if optimizer.backward_passes_per_step != pieces:
            optimizer.set_backward_passes_per_step(pieces)

    def zero_grad(self) -> None:
        optimizer: Any = self.optimizer
        optimizer.zero_grad()
        if self.flags_changed():
            # Those without a hook of their own are reduced when the backward pass is over.
            values = [value for group in optimizer.param_groups for value in group["params"]]
            optimizer._requires_update = {value for value in values if value.requires_grad}
            self._unused = None

    def reduce(self) -> None:
        optimizer: Any = self.optimizer
        if self._unused is None:
            parameters = [value for group in optimizer.param_groups for value in group["params"]]
            usage = Usage(parameters)
            used = {id(value) for value in usage.look(self.total)}
            self._unused = [value for value in parameters if value.requires_grad and id(value) not in used]
        absent = [value for value in self._unused if value.grad is None]
        optimizer.synchronize()
        for value in absent:
            value.grad = None

    def update(self) -> None:
        optimizer: Any = self.optimizer
        with optimizer.skip_synchronize():
            optimizer.step()

    def total(self, value: torch.Tensor) -> torch.Tensor:
        return self._hvd.allreduce(value, op=self._hvd.Sum, name="orca.total")

    def sum_through(self, value: torch.Tensor) -> torch.Tensor:
        return self._hvd.allreduce(value, op=self._hvd.Sum)

    def average(self, tensors: Iterable[torch.Tensor]) -> None:
        def reduce(flat: torch.Tensor) -> None:
            self._hvd.allreduce_(flat, op=self._hvd.Sum, name="orca.average")

        flat_average(list(tensors), self.world, reduce)

    def settle(self) -> None:
        buffers = dict(self.model.named_buffers())
        if buffers:
            self._hvd.broadcast_parameters(buffers, root_rank=0)


def _named(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    return [(name, value) for name, value in model.named_parameters() if id(value) in held]
