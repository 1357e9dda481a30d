"""How torch replicas agree. The base class is one replica alone; a way to sync overrides what differs in it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from orca.backends.base import Seat, State
from orca.backends.torch.state import to_plain, to_torch
from orca.errors import ArgumentError
from orca.launch.base import Rank


class Sync:
    """Owns the optimizer of one rank, and what to call for the forward pass."""

    world = 1
    keeps_step = True

    def __init__(self) -> None:
        self.model: nn.Module
        self.optimizer: torch.optim.Optimizer
        self.forward: Any = None
        self._flags: list[bool] | None = None

    def seat(self, place: Rank) -> Seat:
        """The part of the data for this rank."""
        return Seat(place.rank, place.world)

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Connect a model and its optimizer with those of the other ranks; rank 0's weights are everybody's."""
        self.model, self.optimizer, self.forward = model, optimizer, model

    def flags_changed(self) -> bool:
        """Whether parameters were frozen or thawed since the last step."""
        flags = [value.requires_grad for value in self.model.parameters()]
        if self._flags is None:
            self._flags = flags
        changed, self._flags = flags != self._flags, flags
        return changed

    def share(self, model: nn.Module) -> None:
        """Give all ranks the weights and buffers of rank 0, without connecting anything."""

    def expect(self, pieces: int) -> None:
        """Hear in how many pieces the next step comes."""

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def piece(self, last: bool) -> AbstractContextManager[Any]:
        """Around the forward and backward pass of a piece of a step; gradients are needed after the last."""
        return nullcontext()

    def reduce(self) -> None:
        """After the last backward pass: make the gradients the average over ranks."""

    def trained(self) -> list[nn.Parameter]:
        """The parameters that this rank's optimizer updates, with their gradients after `reduce`."""
        groups = self.optimizer.param_groups
        return [value for group in groups for value in group["params"] if value.grad is not None]

    def norm(self) -> torch.Tensor:
        """The norm of the whole gradient, the same on all ranks."""
        return nn.utils.get_total_norm([value.grad for value in self.trained()])

    def show_gradients(self) -> None:
        """Put the agreed gradients into the model's own parameters, where somebody wants to see them."""

    def take_gradients(self) -> None:
        """Take over what has become of them."""

    def update(self) -> None:
        """Apply the gradients; after this the weights are the same on all ranks."""
        self.optimizer.step()

    def skip(self) -> None:
        """In place of a step, where ranks do not keep step and this one has no rows in it."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a number over all ranks."""
        return value

    def sum_through(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks in a way that gradients flow back through."""
        return value

    def average(self, tensors: Iterable[torch.Tensor]) -> None:
        """Average tensors over all ranks, in place."""

    def settle(self) -> None:
        """Give all ranks the buffers (running statistics) of rank 0."""

    def scorer(self) -> nn.Module:
        """A model that this rank can call without the others."""
        return self.model

    def model_state(self) -> State:
        """The weights, whole, on every rank; called on all ranks together."""
        return dict(to_plain(dict(self.model.state_dict())))

    def load_model_state(self, state: State) -> None:
        self.model.load_state_dict(to_torch(state))

    def optimizer_state(self) -> State:
        """The optimizer's state in torch's own form, whole, on every rank; called on all ranks together."""
        return dict(to_plain(self.optimizer.state_dict()))

    def load_optimizer_state(self, state: State) -> None:
        self.optimizer.load_state_dict(to_torch(state))


def flat_average(tensors: list[torch.Tensor], world: int, reduce: Any) -> None:
    """Average many tensors with one message: `reduce` sums a flat tensor over the ranks in place."""
    for dtype in dict.fromkeys(value.dtype for value in tensors):
        group = [value for value in tensors if value.dtype == dtype]
        flat = torch.cat([value.reshape(-1) for value in group])
        reduce(flat)
        flat /= world
        offset = 0
        for value in group:
            value.copy_(flat[offset : offset + value.numel()].view_as(value))
            offset += value.numel()


class Usage:
    """Finds the parameters that no rank's forward pass uses: they get no gradient anywhere and must stay as they
    are, as in one process, while collectives would make their gradients zeros."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._all = [value for value in parameters if value.requires_grad]
        self.counts: list[float] | None = None

    def look(self, total: Any) -> list[nn.Parameter]:
        """Count on how many ranks each parameter has a gradient; return those that have one somewhere."""
        own = torch.tensor([value.grad is not None for value in self._all], dtype=torch.float32)
        self.counts = total(own).tolist() if len(own) else []
        return [value for value, count in zip(self._all, self.counts or [], strict=True) if count]


def sparse_layers(model: nn.Module) -> list[str]:
    """The layers which say that their gradients name rows, as `nn.Embedding(sparse=True)` does."""
    return [name for name, layer in model.named_modules() if getattr(layer, "sparse", False) is True]


def refuse_sparse_gradients(model: nn.Module) -> None:
    """Raise if gradients cannot be laid out as one vector."""
    names = sparse_layers(model)
    if names:
        raise ArgumentError(
            f"{', '.join(names)} of the model has sparse=True, and gradients that name rows cannot be added up by this "
            'backend. Use sparse=False, or backend="horovod".'
        )
