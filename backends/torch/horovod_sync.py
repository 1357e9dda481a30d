"""Horovod: its distributed optimizer over gloo."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from orca.backends import horovod_group
from orca.backends.torch.sync import Sync, Usage, flat_average, sparse_layers

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

_GROUP_BYTES = 25 << 20
"""Size of a group of gradients: Horovod negotiates once per group while the backward pass continues."""
_POLL_SECONDS = 2e-4
"""Time between polls for results. Horovod itself polls once per millisecond, which is as long as a small step; polling
more often takes the cores away from the threads that compute the results."""


def join(context: RankContext) -> None:
    """Start Horovod in this process as a member of the gang."""
    import horovod.torch as hvd

    horovod_group.join(context, hvd)


class Horovod(Sync):
    """hvd.DistributedOptimizer: averages gradients while the backward pass is still running."""

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
        saved = optimizer.state_dict() if optimizer.state else None
        wrapped = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=_named(model, optimizer),
            compression=self._compression,
            op=hvd.Average,
            # With three or more ranks each tensor is its own message, so that sums are reproducible: see horovod_group.
            groups=_groups(model, optimizer) if self.world == 2 else None,
        )
        if saved is not None:
            wrapped.load_state_dict(saved)
        super().attach(model, wrapped)

    def share(self, model: nn.Module) -> None:
        with torch.no_grad():
            for value in (*model.parameters(), *model.buffers()):
                value.data = value.data.contiguous()  # Horovod supports no other layout
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def expect(self, pieces: int) -> None:
        # Horovod counts backward passes down to the one that communicates.
        optimizer: Any = self.optimizer
        if optimizer.backward_passes_per_step != pieces:
            optimizer.set_backward_passes_per_step(pieces)

    def zero_grad(self) -> None:
        optimizer: Any = self.optimizer
        optimizer.zero_grad()
        if self.flags_changed():
            # Parameters without a hook are reduced after the backward pass.
            values = [value for group in optimizer.param_groups for value in group["params"]]
            optimizer._requires_update = {value for value in values if value.requires_grad}
            self._unused = None

    def reduce(self) -> None:
        optimizer: Any = self.optimizer
        if self._unused is None:
            parameters = [value for group in optimizer.param_groups for value in group["params"]]
            usage = Usage(parameters)
            used = {id(value) for value in usage.used(self.total)}
            self._unused = [value for value in parameters if value.requires_grad and id(value) not in used]
        absent = [value for value in self._unused if value.grad is None] + self._complete_groups()
        self._send_rest()
        for handle, _ in optimizer._handles.values():
            while not callable(handle) and not self._hvd.poll(handle):
                time.sleep(_POLL_SECONDS)
        optimizer.synchronize()
        for value in absent:
            value.grad = None

    def _complete_groups(self) -> list[nn.Parameter]:
        """Send the groups in which this step left out some parameters, with zero gradients for these.

        All ranks must send the same groups. Returns the frozen parameters, which must not keep a zero gradient.
        """
        optimizer: Any = self.optimizer
        frozen = []
        for group in optimizer._group_counts:
            if group in optimizer._handles:
                continue
            for value in group:
                if value.grad is None:
                    value.grad = torch.zeros_like(value)
                    frozen += [] if value.requires_grad else [value]
                if optimizer._allreduce_delay[value] > 0:
                    optimizer._allreduce_delay[value] = 1
                    optimizer._make_hook(value)()
        return frozen

    def _send_rest(self) -> None:
        """Send the gradients that no backward pass of this rank has reached.

        This must happen before any wait. Otherwise two ranks that each left out what the other has already sent would
        wait for each other.
        """
        optimizer: Any = self.optimizer
        sent: set[nn.Parameter] = set()
        for key, (handle, _) in optimizer._handles.items():
            if handle is not None:
                sent.update(key if isinstance(key, tuple) else [key])
        for value in optimizer._requires_update - sent:
            optimizer._handles[value] = optimizer._allreduce_grad_async(value)

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


def _groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[nn.Parameter]] | None:
    """Group the parameters by dtype in the order of the backward pass; None if sparse gradients prevent that."""
    if sparse_layers(model):
        return None
    groups: list[list[nn.Parameter]] = []
    size = 0
    for _, value in reversed(_named(model, optimizer)):
        if not groups or size > _GROUP_BYTES or groups[-1][0].dtype != value.dtype:
            groups.append([])
            size = 0
        groups[-1].append(value)
        size += value.nbytes
    return groups
