"""The synchronous parameter server: every rank owns an equal slice of the parameters and of the optimizer's state.

In a step each rank sends its gradients to the owners of the slices (all-to-all), the owners average them and update
their slices, and all ranks gather the new parameters. Owners sum in rank order, so results are reproducible bit for
bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from orca.backends.base import State
from orca.backends.torch.data_parallel import Collective
from orca.backends.torch.state import to_plain, to_torch
from orca.backends.torch.sums import WIRE_TYPES, all_gather, own_part_of_sum
from orca.backends.torch.sync import Usage
from orca.errors import ArgumentError

_ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")


@dataclass
class Table:
    """The parameters of one optimizer group and dtype, laid out in contiguous memory."""

    group: int
    members: list[nn.Parameter]
    values: torch.Tensor
    gradients: torch.Tensor
    owned: nn.Parameter
    """This rank's slice of the values, the only parameter of its optimizer."""
    parts: list[tuple[nn.Parameter, torch.Tensor]] = field(init=False)
    """Each parameter with its part of the gradients, the tensor that becomes its `grad`."""

    def __post_init__(self) -> None:
        self.parts = list(self.cut(self.gradients))

    def cut(self, flat: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Yield each parameter with its part of a flat tensor."""
        offset = 0
        for member in self.members:
            yield member, flat[offset : offset + member.numel()].view(member.shape)
            offset += member.numel()

    def clear(self) -> None:
        """Reset the gradients to zero at the start of a step."""
        self.gradients.zero_()
        for member, part in self.parts:
            if member.grad is not part:
                member.grad = part

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def collect(self) -> None:
        """Copy gradients that were replaced (by a callback or `model.zero_grad()`) and restore our own tensors.

        Otherwise the backward pass would keep filling tensors that are never sent.
        """
        for member, part in self.parts:
            if member.grad is not part:
                if member.grad is None:
                    part.zero_()
                else:
                    part.copy_(member.grad)
                member.grad = part


def check_optimizer(optimizer: Any) -> None:
    """Raise if an optimizer does not update elementwise: it cannot work on a slice."""
    cls = optimizer if isinstance(optimizer, type) else type(optimizer)
    if getattr(cls, "elementwise", False):
        return
    bases = [base.__name__ for base in cls.__mro__ if base.__module__.startswith("torch.optim")]
    if not any(name in _ELEMENTWISE for name in bases):
        raise ArgumentError(
            f"optimizer={cls.__name__}: the parameter server splits parameters into slices, which only works for "
            f'elementwise optimizers ({", ".join(_ELEMENTWISE)}). Use backend="torch_distributed", or set '
            "elementwise = True on your optimizer's class if it updates each value independently."
        )


def slices(optimizer: torch.optim.Optimizer, selected: set[int], owners: int, owner: int | None) -> list[Table]:
    """Lay out the parameters with these ids in flat tables, one per group and dtype, split into equal slices."""
    tables = []
    for number, group in enumerate(optimizer.param_groups):
        chosen = [value for value in group["params"] if id(value) in selected]
        for dtype in dict.fromkeys(value.dtype for value in chosen):
            members = [value for value in chosen if value.dtype == dtype]
            size = math.ceil(sum(value.numel() for value in members) / owners)
            device = members[0].device
            values = torch.zeros(size * owners, dtype=dtype, device=device)
            gradients = torch.zeros_like(values)
            start = (owner or 0) * size
            table = Table(number, members, values, gradients, nn.Parameter(values[start : start + size]))
            with torch.no_grad():
                for member, part in table.cut(values):
                    part.copy_(member)
                    member.data = part
            table.collect()
            tables.append(table)
    return tables


def slice_state(tables: list[Table], full: Any, members: list[nn.Parameter], owner: int, owners: int) -> Any:
    """Convert an optimizer's full state, in torch's form, to the state of one owner's slices."""
    numbers = {id(value): number for number, value in enumerate(members)}
    state: dict[int, Any] = {}
    groups: list[Any] = [{**group, "params": []} for group in full["param_groups"]]
    for index, table in enumerate(tables):
        size = table.values.numel() // owners
        entries = [full["state"].get(numbers[id(member)], {}) for member in table.members]
        names = dict.fromkeys(name for entry in entries for name in entry)
        sliced: dict[str, Any] = {}
        for name in names:
            values = [entry.get(name) for entry in entries]
            like = next(value for value in values if value is not None)
            if (
                name != "step"
                and isinstance(like, torch.Tensor)
                and any(
                    isinstance(value, torch.Tensor) and value.shape == member.shape
                    for value, member in zip(values, table.members, strict=True)
                )
            ):
                flat = torch.zeros(table.values.numel(), dtype=like.dtype)
                for value, (_, part) in zip(values, table.cut(flat), strict=True):
                    if value is not None:
                        part.copy_(value.reshape(part.shape))
                sliced[name] = flat[owner * size : (owner + 1) * size].clone()
            else:
                sliced[name] = like
        if sliced:
            state[index] = sliced
        groups[table.group]["params"].append(index)
    return {"state": state, "param_groups": groups}


def whole_state(
    tables: list[Table], slices_of: list[list[Any]], options: list[Any], groups: list[list[nn.Parameter]]
) -> Any:
    """Reverse `slice_state`: assemble each table's state from all owners' slices, in torch's form."""
    numbers = {id(value): number for number, value in enumerate(value for group in groups for value in group)}
    state: dict[int, Any] = {}
    for table, owners in zip(tables, slices_of, strict=True):
        size = table.values.numel() // len(owners)
        for name, value in owners[0].items():
            sliced = name != "step" and isinstance(value, torch.Tensor) and value.shape == (size,)
            flat = torch.cat([owner[name] for owner in owners]) if sliced else table.values
            for member, part in table.cut(flat):
                own = part.clone() if sliced else value.clone() if isinstance(value, torch.Tensor) else value
                state.setdefault(numbers[id(member)], {})[name] = own
    param_groups = []
    for group, members in zip(options, groups, strict=True):
        param_groups.append({**_options(group), "params": [numbers[id(member)] for member in members]})
    return {"state": state, "param_groups": param_groups}


def own_slices(optimizer: torch.optim.Optimizer, tables: list[Table]) -> None:
    """Replace the optimizer's parameters with the owner's slices and clear its state."""
    optimizer.state.clear()
    for number, group in enumerate(optimizer.param_groups):
        group["params"] = [table.owned for table in tables if table.group == number]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


class ParameterServer(Collective):
    """Slices of parameters and optimizer state on all ranks, updated in lockstep."""

    def __init__(self, world: int, rank: int, compression: str | None = None) -> None:
        super().__init__(world)
        self._rank = rank
        self._wire = WIRE_TYPES.get(compression or "")
        self._tables: list[Table] = []
        self._groups: list[list[nn.Parameter]] = []
        self._outside: list[nn.Parameter] = []
        """Trainable parameters that no rank has used so far."""
        self._loaded: Any = None

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        check_optimizer(optimizer)
        super().attach(model, optimizer)
        self.share(model)
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        if optimizer.state:
            self._loaded = optimizer.state_dict()

    def zero_grad(self) -> None:
        if self._tables and self.flags_changed():
            self._take_apart()
        if not self._tables:
            for group in self._groups:
                for value in group:
                    value.grad = None
            self.flags_changed()
        for table in self._tables:
            table.clear()
        for value in self._outside:
            value.grad = None

    def _take_apart(self) -> None:
        """Return to separate parameters; the next step lays them out again."""
        self._loaded = to_torch(self.optimizer_state())
        self._tables = []
        self.optimizer.state.clear()
        for group, members in zip(self.optimizer.param_groups, self._groups, strict=True):
            group["params"] = list(members)

    def reduce(self) -> None:
        for table in self._tables:
            table.collect()
        if self._outside and self.total(torch.tensor(float(any(v.grad is not None for v in self._outside)))) > 0:
            outside = {id(value): value.grad for value in self._outside}
            inside = [(member, member.grad) for table in self._tables for member in table.members]
            self._take_apart()
            for member, gradient in inside:
                member.grad = gradient.clone()
            for value in self._outside:
                value.grad = outside[id(value)]
        if not self._tables:
            self._lay_out()
        for table in self._tables:
            sent = table.gradients if self._wire is None else table.gradients.to(self._wire)
            table.owned.grad = own_part_of_sum(sent, self.world, table.owned.dtype).div_(self.world)

    def _lay_out(self) -> None:
        """Lay out the parameters that the first backward pass has used; the others stay as they are."""
        parameters = [value for group in self._groups for value in group]
        used = {id(value) for value in Usage(parameters).used(self.total)}
        self._outside = [value for value in parameters if value.requires_grad and id(value) not in used]
        options = [_options(group) for group in self.optimizer.param_groups]
        self._tables = slices(self.optimizer, used, self.world, self._rank)
        own_slices(self.optimizer, self._tables)
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self._load(loaded)
            # Options that were set since then, such as learning rates, take precedence.
            for group, option in zip(self.optimizer.param_groups, options, strict=True):
                group.update(option)

    def norm(self) -> torch.Tensor:
        own = super().norm() if self.trained() else torch.zeros(())
        return self.total(own**2).sqrt()

    def show_gradients(self) -> None:
        for table in self._tables:
            all_gather(table.gradients, table.owned.grad)

    def take_gradients(self) -> None:
        for table in self._tables:
            table.collect()
            table.owned.grad.copy_(table.gradients.chunk(self.world)[self._rank])

    def update(self) -> None:
        self.optimizer.step()
        for table in self._tables:
            all_gather(table.values, table.owned.data)

    def optimizer_state(self) -> State:
        if not self._tables:
            return dict(to_plain(self._loaded or self.optimizer.state_dict()))

        entries = []
        for table in self._tables:
            owners: list[Any] = [{} for _ in range(self.world)]
            for name, value in self.optimizer.state.get(table.owned, {}).items():
                parts = [value] * self.world
                if isinstance(value, torch.Tensor) and value.shape == table.owned.shape:
                    flat = torch.empty_like(table.values, dtype=value.dtype)
                    all_gather(flat, value)
                    parts = list(flat.chunk(self.world))
                for owner, part in zip(owners, parts, strict=True):
                    owner[name] = part
            entries.append(owners)
        return dict(to_plain(whole_state(self._tables, entries, self.optimizer.param_groups, self._groups)))

    def load_optimizer_state(self, state: State) -> None:
        if self._tables:
            self._load(to_torch(state))
        else:
            self._loaded = to_torch(state)
            for group, saved in zip(self.optimizer.param_groups, self._loaded["param_groups"], strict=True):
                group.update(_options(saved))

    def _load(self, full: Any) -> None:
        members = [value for group in self._groups for value in group]
        self.optimizer.load_state_dict(slice_state(self._tables, full, members, self._rank, self.world))
