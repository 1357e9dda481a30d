"""Recurrent layers: containers that run a cell over the time steps of a sequence."""

from __future__ import annotations

import copy
import uuid
from typing import Any, Self

import torch

from orca.backends.bigdl.cells import Cell, State
from orca.backends.bigdl.container import Container
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.table_layers import CAddTable
from orca.backends.bigdl.tables import each, to_arrays, to_tensors
from orca.core.arguments import check_count, shown
from orca.errors import ArgumentError, DataError, NotFittedError


class Recurrent(Container):
    """Runs a cell over a sequence (batch, time, …), and returns the outputs of all time steps.

    >>> from orca.backends.bigdl.cells import LSTM
    >>> import numpy as np
    >>> Recurrent().add(LSTM(4, 3)).forward(np.ones([2, 5, 4])).shape
    (2, 5, 3)
    """

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__()
        self._first: State | None = None
        self._last: State | None = None

    def add(self, model: Layer) -> Self:
        """Set the cell.

        Args:
            model: A cell such as `LSTM(4, 3)`.

        Returns:
            This layer.
        """
        if not isinstance(model, Cell):
            raise ArgumentError(f"model={shown(model)}: expected a cell, such as LSTM(4, 3).")
        if self._children:
            raise ArgumentError(f"{self!r} has a cell already. Stack cells with several Recurrent layers.")
        return super().add(model)

    @property
    def cell(self) -> Cell:
        """The cell."""
        if not self._children:
            raise DataError(f"{self!r} has no cell. Set one with add().")
        (cell,) = self._children.values()
        assert isinstance(cell, Cell)
        return cell

    def compute(self, x: Any) -> torch.Tensor:
        self.cell.check_sequence(x)
        outputs, state = self.cell.run(x, self._start(x))
        self._last = _detached(state)
        return outputs

    def _start(self, x: torch.Tensor) -> State:
        return self.cell.first_state(x) if self._first is None else self._first

    def get_hidden_state(self) -> Any:
        """Return the state after the last time step of the last sequence."""
        if self._last is None:
            raise NotFittedError(f"{self!r} has not seen a sequence yet.")
        values = to_arrays(self._last)
        return values[0] if len(values) == 1 else values

    def set_hidden_state(self, states: Any) -> Self:
        """Set the state before the first time step.

        Args:
            states: An array, or a list of them, as `get_hidden_state` returns it.

        Returns:
            This layer.
        """
        tensors = to_tensors(states, "state")
        self._first = tensors if isinstance(tensors, list) else [tensors]
        return self

    def __getstate__(self) -> dict[str, Any]:
        first = None if self._first is None else _detached(self._first)
        return {**super().__getstate__(), "_first": first, "_last": None}


def _detached(state: State) -> State:
    """Return a state without the graph that computed it, which would keep memory."""
    detached: State = each(lambda tensor: tensor.detach(), state)
    return detached


class RecurrentDecoder(Recurrent):
    """Runs a cell on its own outputs, starting from one time step (batch, …).

    Args:
        output_length: The number of time steps of the output.
    """

    def __init__(self, output_length: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.length = check_count("output_length", output_length)

    def compute(self, x: Any) -> torch.Tensor:
        cell = self.cell
        cell.check_sequence(x.unsqueeze(1))
        if x.shape[1] != cell.hidden_size:
            raise DataError(
                f"{self!r} feeds outputs back as inputs, so the cell's output size {cell.hidden_size} must equal its "
                f"input size {x.shape[1]}."
            )
        state, outputs = self._start(x), []
        for _ in range(self.length):
            (z,) = cell.prepare(x.unsqueeze(1))
            x, state = cell.step(z, state)
            outputs.append(x)
        self._last = _detached(state)
        return torch.stack(outputs, dim=1)


class BiRecurrent(Container):
    """Runs a cell over a sequence, and a copy of it over the reversed sequence.

    Args:
        merge: The layer that merges both outputs, `CAddTable()` by default.
    """

    def __init__(self, merge: Layer | None = None, bigdl_type: str = "float") -> None:
        super().__init__()
        self.forth, self.back = Recurrent(), Recurrent()
        self.merge = CAddTable() if merge is None else merge

    def add(self, model: Layer) -> Self:
        """Set the cell; the reversed sequence gets a copy, which starts with the same weights.

        Args:
            model: A cell such as `LSTM(4, 3)`.

        Returns:
            This layer.
        """
        self.forth.add(model)
        twin = copy.deepcopy(model)
        for layer in twin.walk():
            layer.set_name(f"{type(layer).__name__}{uuid.uuid4().hex[:8]}")
        self.back.add(twin)
        for name, part in (("forth", self.forth), ("back", self.back), ("merge", self.merge)):
            self.attach(name, part)
        return self

    def added(self) -> list[Layer]:
        """Return the cell."""
        return self.forth.added()

    def compute(self, x: Any) -> Any:
        return self.merge.module([self.forth.module(x), self.back.module(x.flip(1)).flip(1)])
