"""torch.distributed with full replicas or sharded replicas (FSDP2)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from orca.backends.base import State
from orca.backends.parts import Parts
from orca.backends.torch.buckets import Buckets
from orca.backends.torch.state import to_plain, to_torch
from orca.backends.torch.sums import WIRE_TYPES, sum_over_ranks
from orca.backends.torch.sync import Sync, flat_average, refuse_sparse_gradients


class Collective(Sync):
    """Base of the synchronization strategies that use a torch process group."""

    _wire: torch.dtype | None = None

    def __init__(self, world: int) -> None:
        super().__init__()
        self.world = world

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        refuse_sparse_gradients(model)
        super().attach(model, optimizer)

    def share(self, model: nn.Module) -> None:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor, src=0)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        return _summed(value)

    def sum_through(self, value: torch.Tensor) -> torch.Tensor:
        return _Sum.apply(value)

    def average(self, tensors: Iterable[torch.Tensor]) -> None:
        flat_average(list(tensors), self.world, lambda flat: sum_over_ranks(flat, self._wire))

    def settle(self) -> None:
        for buffer in self.model.buffers():
            dist.broadcast(buffer, src=0)


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    """Sums over all ranks, forward and backward: the gradient of a sum is the sum of the gradients."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return _summed(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return _summed(gradients[0].contiguous())


def _summed(value: torch.Tensor) -> torch.Tensor:
    total = value.clone(memory_format=torch.contiguous_format)
    sum_over_ranks(total.view(-1))
    return total


class DataParallel(Collective):
    """Full replicas: averages gradients while the backward pass is still running."""

    def __init__(self, world: int, compression: str | None = None, group: Any = None) -> None:
        super().__init__(world)
        self._wire = WIRE_TYPES.get(compression or "")
        self._group = group
        self._buckets: Buckets | None = None
        self._others: dict[int, Buckets] = {}

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().attach(model, optimizer)
        self.share(model)

    def zero_grad(self) -> None:
        super().zero_grad()
        if self.flags_changed() and self._buckets is not None:
            self._buckets.close()
            self._buckets = None
        if self._buckets is None:
            trained = [value for value in self.model.parameters() if value.requires_grad]
            self._buckets = Buckets(trained, self.world, self._wire, self._group)
            self._buckets.watch()

    def piece(self, last: bool) -> AbstractContextManager[Any]:
        return self._buckets if last and self._buckets is not None else nullcontext()

    def reduce(self) -> None:
        assert self._buckets is not None
        self._buckets.finish()

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        if not parameters:
            return []
        key = id(parameters[0])  # each optimizer of a custom step has its own first parameter
        buckets = self._others.get(key)
        if buckets is None or not buckets.hold(parameters):
            buckets = self._others[key] = Buckets(parameters, self.world, self._wire)
        buckets.average()
        return [parameter for parameter in parameters if parameter.grad is not None]


class Sharded(Collective):
    """FSDP2: each rank stores a slice of every weight, gradient and optimizer state."""

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.share(model)
        # Evaluation calls the model a different number of times on each rank, which a sharded model does not support.
        self._twin = copy.deepcopy(model)
        with torch.no_grad():
            for value in model.parameters():
                value.data = value.data.contiguous()
        before = list(model.parameters())
        mesh = init_device_mesh(before[0].device.type, (self.world,))
        for child in _blocks(model):
            fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
        sharded = {id(old): value for old, value in zip(before, model.parameters(), strict=True)}
        saved = optimizer.state_dict()
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group["params"] = [sharded[id(value)] for value in group["params"]]
        super().attach(model, optimizer)
        if saved["state"]:
            self.load_optimizer_state(to_plain(saved))

    def piece(self, last: bool) -> AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def norm(self) -> torch.Tensor:
        return _whole(super().norm())

    def settle(self) -> None:
        super().settle()
        self._twin.load_state_dict(to_torch(self.model_state()))

    def scorer(self) -> nn.Module:
        return self._twin

    def model_state(self) -> State:
        return dict(to_plain({name: _whole(value) for name, value in self.model.state_dict().items()}))

    def load_model_state(self, state: State) -> None:
        whole = to_torch(state)
        self._twin.load_state_dict(whole)
        own = self.model.state_dict()
        self.model.load_state_dict({name: _cut(whole[name], value) for name, value in own.items()})

    def optimizer_state(self) -> State:
        full = self.optimizer.state_dict()
        full["state"] = {
            key: {name: _whole(value) for name, value in entry.items()} for key, entry in full["state"].items()
        }
        return dict(to_plain(full))

    def load_optimizer_state(self, state: State) -> None:
        full = to_torch(state)
        values = [value for group in self.optimizer.param_groups for value in group["params"]]
        for key, entry in full["state"].items():
            like = values[key]
            for name, value in entry.items():
                if isinstance(value, torch.Tensor) and value.shape == like.shape:
                    entry[name] = _cut(value, like)
        self.optimizer.load_state_dict(full)

    def save_parts(self, path: str, token: str) -> tuple[State, Parts | None]:
        from orca.backends.torch.parts import Slices, save_parts, split_state

        slices = Slices()
        model, optimizer = split_state(slices, self.model.state_dict(), self.optimizer.state_dict())
        parts = save_parts(slices.tensors, path, token, dist.get_rank())
        return {"model": to_plain(model), "optimizer": to_plain(optimizer)}, parts


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers to shard separately, so that only one layer's weights are assembled at a time.

    Only the layers of an `nn.Sequential` without shared parameters qualify; other models may call their parts in any
    order and are sharded as one unit.
    """
    children = [child for child in model.children() if any(value.requires_grad for value in child.parameters())]
    held = [id(value) for child in children for value in child.parameters()]
    return children if isinstance(model, nn.Sequential) and len(held) == len(set(held)) else []


def _whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _cut(value: torch.Tensor, like: Any) -> torch.Tensor:
    if not hasattr(like, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
