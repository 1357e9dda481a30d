"""Synchronization of torch replicas: the base class serves a single replica, and each strategy overrides parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from orca.backends.base import Seat, State
from orca.backends.parts import Parts
from orca.backends.torch.state import to_plain, to_torch
from orca.errors import ArgumentError
from orca.launch.base import Rank


class Sync:
    """Owns the optimizer of one rank and the callable of the forward pass."""

    world = 1
    lockstep = True

    def __init__(self) -> None:
        self.model: nn.Module
        self.optimizer: torch.optim.Optimizer
        self.forward: Any = None
        self._flags: list[bool] | None = None

    def seat(self, place: Rank) -> Seat:
        """Return the part of the data for this rank."""
        return Seat(place.rank, place.world)

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Connect a model and its optimizer to the other ranks; all ranks start from rank 0's weights."""
        self.model, self.optimizer, self.forward = model, optimizer, model

    def flags_changed(self) -> bool:
        """Whether parameters were frozen or unfrozen since the last step."""
        flags = [value.requires_grad for value in self.model.parameters()]
        if self._flags is None:
            self._flags = flags
        changed, self._flags = flags != self._flags, flags
        return changed

    def share(self, model: nn.Module) -> None:
        """Copy the weights and buffers of rank 0 to all ranks, without connecting anything."""

    def expect(self, pieces: int) -> None:
        """Set the number of pieces of the next step."""

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def piece(self, last: bool) -> AbstractContextManager[Any]:
        """Return the context for a piece's forward and backward pass; gradients are needed after the last piece."""
        return nullcontext()

    def reduce(self) -> None:
        """Average the gradients over the ranks, after the last backward pass."""

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that this rank's optimizer updates, with their gradients after `reduce`."""
        groups = self.optimizer.param_groups
        return [value for group in groups for value in group["params"] if value.grad is not None]

    def norm(self) -> torch.Tensor:
        """Return the norm of the full gradient, the same on all ranks."""
        return nn.utils.get_total_norm([value.grad for value in self.trained()])

    def show_gradients(self) -> None:
        """Write the reduced gradients into the model's own parameters, for callbacks."""

    def take_gradients(self) -> None:
        """Read them back after callbacks have changed them."""

    def update(self) -> None:
        """Apply the gradients; afterwards all ranks have the same weights."""
        self.optimizer.step()

    def skip(self) -> None:
        """Replace a step without rows on this rank, where ranks do not run in lockstep."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a number over all ranks."""
        return value

    def sum_through(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, differentiably."""
        return value

    def average(self, tensors: Iterable[torch.Tensor]) -> None:
        """Average tensors over all ranks, in place."""

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Average the gradients over all ranks; return the parameters that have one on any rank."""
        used = Usage(parameters).used(self.total)
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.average([parameter.grad for parameter in used])
        return used

    def settle(self) -> None:
        """Copy the buffers (running statistics) of rank 0 to all ranks."""

    def scorer(self) -> nn.Module:
        """Return a model that this rank can call without the others."""
        return self.model

    def model_state(self) -> State:
        """Return the full weights on every rank; called on all ranks together."""
        return dict(to_plain(dict(self.model.state_dict())))

    def load_model_state(self, state: State) -> None:
        self.model.load_state_dict(to_torch(state))

    def optimizer_state(self) -> State:
        """Return the optimizer's full state in torch's form, on every rank; called on all ranks together."""
        return dict(to_plain(self.optimizer.state_dict()))

    def load_optimizer_state(self, state: State) -> None:
        self.optimizer.load_state_dict(to_torch(state))

    def save_parts(self, path: str, token: str) -> tuple[State, Parts | None] | None:
        """Write this rank's slices of the state; return the rest of it, and the index on rank 0.

        None if every rank has the full state. Called on all ranks together.
        """
        return None


@torch.no_grad()  # type: ignore[untyped-decorator]
def penalize(optimizer: torch.optim.Optimizer) -> None:
    """Add to the gradients the penalties that parameter groups ask for with the options "l1" and "l2".

    Each is the derivative of a penalty on weights, ``l1 * sign(w) + l2 * w``, which the reported loss does not include.
    """
    for group in optimizer.param_groups:
        l1, l2 = group.get("l1", 0.0), group.get("l2", 0.0)
        for value in group["params"] if l1 or l2 else ():
            if value.grad is None:
                continue
            if l1:
                value.grad.add_(value.sign(), alpha=l1)
            if l2:
                value.grad.add_(value, alpha=l2)


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
    """Finds the parameters that no rank's forward pass uses.

    They have no gradient on any rank and must not change, as in a single process; collectives would give them zeros.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._all = [value for value in parameters if value.requires_grad]
        self.counts: list[float] | None = None

    def used(self, total: Any) -> list[nn.Parameter]:
        """Count the ranks on which each parameter has a gradient; return those with a gradient on any rank."""
        own = torch.tensor([value.grad is not None for value in self._all], dtype=torch.float32)
        self.counts = total(own).tolist() if len(own) else []
        return [value for value, count in zip(self._all, self.counts or [], strict=True) if count]


def sparse_layers(model: nn.Module) -> list[str]:
    """Return the names of layers with sparse gradients, such as `nn.Embedding(sparse=True)`."""
    return [name for name, layer in model.named_modules() if getattr(layer, "sparse", False) is True]


def refuse_sparse_gradients(model: nn.Module) -> None:
    """Raise if the model has sparse gradients, which cannot be flattened."""
    names = sparse_layers(model)
    if names:
        raise ArgumentError(
            f"{', '.join(names)} of the model has sparse=True, and this backend does not support sparse gradients. "
            'Use sparse=False, or backend="horovod".'
        )
