"""Cells of recurrent layers: what happens in one time step."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.activations import Sigmoid, Tanh, activation_of
from orca.backends.bigdl.dimensions import need_dims, need_size
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.linear import Linear
from orca.core.arguments import check_count, check_flag, shown
from orca.errors import ArgumentError, DataError

State = list[Any]
WITH_DROPOUT: dict[str, Any] = {}
"""The classes of cells with dropout by the names of those without; the module of the former fills it."""


class Cell(Layer):
    """A cell: `prepare` sees a whole sequence (batch, time, …), `step` one time step and the state before it."""

    input_size: int
    hidden_size: int
    states = 1
    """The number of tensors in the state."""

    def prepare(self, x: torch.Tensor) -> Any:
        """Return what the steps take of a sequence: one entry per time step."""
        return x.unbind(1)

    def step(self, z: Any, state: State) -> tuple[torch.Tensor, State]:
        """Return the output and the state after one time step."""
        raise NotImplementedError

    def first_state(self, x: torch.Tensor) -> State:
        """Return the state before the first time step, zeros, for a sequence or its first time step."""
        return [x.new_zeros(x.shape[0], self.hidden_size) for _ in range(self.states)]

    def run(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Return the outputs (batch, time, …) and the last state."""
        outputs = []
        for z in self.prepare(x):
            output, state = self.step(z, state)
            outputs.append(output)
        return torch.stack(outputs, dim=1), state

    def check_sequence(self, x: torch.Tensor) -> None:
        """Raise if this is not a sequence for the cell."""
        need_dims(self, x, 3)
        need_size(self, x, 2, self.input_size, "values per time step")

    def compute(self, x: Any) -> Any:
        if not isinstance(x, list) or len(x) != 2:
            raise DataError(f"{self!r} is a cell. Add it to a Recurrent or BiRecurrent, which run it over sequences.")
        state = x[1] if isinstance(x[1], list) else [x[1]]
        (z,) = self.prepare(x[0].unsqueeze(1))
        output, state = self.step(z, state)
        return [output, state[0] if self.states == 1 else state]


class _Prepared(Cell):
    """A cell whose first matrix product is done for all time steps at once."""

    pre: Linear

    def prepare(self, x: torch.Tensor) -> Any:
        return self.pre.product(x).unbind(1)


class RnnCell(_Prepared):
    """A simple cell: h = f(W x + b + U h + c).

    Args:
        input_size: The number of values per time step.
        hidden_size: The size of the state.
        activation: The function f, a layer or its name.
        isInputWithBias: Whether there is b.
        isHiddenWithBias: Whether there is c.
        wRegularizer: The regularizer of W.
        uRegularizer: The regularizer of U.
        bRegularizer: The regularizer of b.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        activation: Any,
        isInputWithBias: bool = True,
        isHiddenWithBias: bool = True,
        wRegularizer: Any = None,
        uRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.input_size = check_count("input_size", input_size)
        self.hidden_size = check_count("hidden_size", hidden_size)
        with_bias = check_flag("isInputWithBias", isInputWithBias)
        pre = Linear(input_size, hidden_size, with_bias, wRegularizer, bRegularizer)
        self.pre = self.attach("pre", pre)
        hidden = Linear(hidden_size, hidden_size, check_flag("isHiddenWithBias", isHiddenWithBias), uRegularizer)
        self.hidden: Linear = self.attach("hidden", hidden)
        self.activation: Layer = self.attach("activation", activation_of(activation))

    def step(self, z: Any, state: State) -> tuple[torch.Tensor, State]:
        h = self.activation.module(z + self.hidden.product(state[0]))
        return h, [h]


class LSTM(_Prepared):
    """A long short-term memory; the gates are in the order input, candidate, forget, output.

    Args:
        input_size: The number of values per time step.
        hidden_size: The size of the state.
        p: The probability of dropout in front of each gate.
        activation: The activation of candidate and output, a layer or its name; Tanh by default.
        inner_activation: The activation of the gates; Sigmoid by default.
        wRegularizer: The regularizer of the weights of inputs.
        uRegularizer: The regularizer of the weights of the state.
        bRegularizer: The regularizer of the bias.
    """

    states = 2

    def __new__(cls, input_size: int = 1, hidden_size: int = 1, p: float = 0.0, *args: Any, **kwargs: Any) -> Any:
        """Return a cell with dropout, which has other weights, if p is not 0."""
        return super().__new__(WITH_DROPOUT["LSTM"] if cls is LSTM and p else cls)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        p: float = 0.0,
        activation: Any = None,
        inner_activation: Any = None,
        wRegularizer: Any = None,
        uRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.input_size = check_count("input_size", input_size)
        self.hidden_size = check_count("hidden_size", hidden_size)
        hidden = Linear(hidden_size, 4 * hidden_size, False, uRegularizer)
        self.pre = self.attach("pre", Linear(input_size, 4 * hidden_size, True, wRegularizer, bRegularizer))
        self.hidden: Linear = self.attach("hidden", hidden)
        self.activation: Layer = self.attach("activation", activation_of(activation or Tanh()))
        self.inner: Layer = self.attach("inner", activation_of(inner_activation or Sigmoid(), "inner_activation"))
        self.fused = type(self.activation) is Tanh and type(self.inner) is Sigmoid

    def step(self, z: Any, state: State) -> tuple[torch.Tensor, State]:
        i, g, f, o = (z + self.hidden.product(state[0])).chunk(4, dim=-1)
        inner, activation = self.inner.module, self.activation.module
        c = inner(i) * activation(g) + inner(f) * state[1]
        h = activation(c) * inner(o)
        return h, [h, c]

    def run(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        if not self.fused:
            return super().run(x, state)
        pre: Any = self.pre.module
        hidden: Any = self.hidden.module
        weights = [self._torch_order(w) for w in (pre.weight, hidden.weight, pre.bias)]
        weights.append(torch.zeros_like(weights[2]))
        first = [tensor.unsqueeze(0) for tensor in state]
        output, h, c = torch.lstm(x, first, weights, True, 1, 0.0, self.module.training, False, True)
        return output, [h.squeeze(0), c.squeeze(0)]

    def _torch_order(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight with the gates in torch's order: input, forget, candidate, output."""
        i, g, f, o = weight.chunk(4)
        return torch.cat([i, f, g, o])


class GRU(_Prepared):
    """A gated recurrent unit: n = f(W x + b + U (r h)), h = (1 - z) n + z h.

    Args:
        input_size: The number of values per time step.
        hidden_size: The size of the state.
        p: The probability of dropout in front of each gate.
        activation: The activation of the candidate, a layer or its name; Tanh by default.
        inner_activation: The activation of the gates; Sigmoid by default.
        wRegularizer: The regularizer of the weights of inputs.
        uRegularizer: The regularizer of the weights of the state.
        bRegularizer: The regularizer of the bias.
    """

    def __new__(cls, input_size: int = 1, hidden_size: int = 1, p: float = 0.0, *args: Any, **kwargs: Any) -> Any:
        """Return a cell with dropout, which has other weights, if p is not 0."""
        return super().__new__(WITH_DROPOUT["GRU"] if cls is GRU and p else cls)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        p: float = 0.0,
        activation: Any = None,
        inner_activation: Any = None,
        wRegularizer: Any = None,
        uRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.input_size = check_count("input_size", input_size)
        self.hidden_size = check_count("hidden_size", hidden_size)
        gates = Linear(hidden_size, 2 * hidden_size, False, uRegularizer)
        candidate = Linear(hidden_size, hidden_size, False, uRegularizer)
        self.pre = self.attach("pre", Linear(input_size, 3 * hidden_size, True, wRegularizer, bRegularizer))
        self.gates: Linear = self.attach("gates", gates)
        self.candidate: Linear = self.attach("candidate", candidate)
        self.activation: Layer = self.attach("activation", activation_of(activation or Tanh()))
        self.inner: Layer = self.attach("inner", activation_of(inner_activation or Sigmoid(), "inner_activation"))

    def prepare(self, x: torch.Tensor) -> Any:
        z = self.pre.product(x)
        size = 2 * self.hidden_size
        return zip(z[..., :size].unbind(1), z[..., size:].unbind(1), strict=True)

    def step(self, z: Any, state: State) -> tuple[torch.Tensor, State]:
        (h,) = state
        gates: Any = self.gates.module
        candidate: Any = self.candidate.module
        r, u = self.inner.module(torch.addmm(z[0], h, gates.weight.t())).chunk(2, dim=-1)
        n = self.activation.module(torch.addmm(z[1], r * h, candidate.weight.t()))
        h = torch.lerp(n, h, u)
        return h, [h]


class MultiRNNCell(Cell):
    """Stacks cells: each takes the output of the one before it.

    Args:
        cells: The cells.
    """

    def __init__(self, cells: list[Cell], bigdl_type: str = "float") -> None:
        super().__init__()
        if not isinstance(cells, list | tuple) or not cells or not all(isinstance(cell, Cell) for cell in cells):
            raise ArgumentError(f"cells={shown(cells)}: expected a list of cells, such as [LSTM(4, 3), LSTM(3, 3)].")
        self.cells: list[Cell] = [self.attach(str(i), cell) for i, cell in enumerate(cells)]
        self.input_size, self.hidden_size = cells[0].input_size, cells[-1].hidden_size
        self.states = len(cells)

    def check_sequence(self, x: torch.Tensor) -> None:
        """Raise if this is not a sequence for the first cell."""
        self.cells[0].check_sequence(x)

    def first_state(self, x: torch.Tensor) -> State:
        """Return the states of all cells."""
        return [cell.first_state(x) for cell in self.cells]

    def step(self, z: Any, state: State) -> tuple[torch.Tensor, State]:
        after = []
        for cell, own in zip(self.cells, state, strict=True):
            (prepared,) = cell.prepare(z.unsqueeze(1))
            z, own = cell.step(prepared, own)
            after.append(own)
        return z, after
