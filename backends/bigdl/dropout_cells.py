"""Cells that BigDL builds as graphs: those with dropout in front of each gate, and the LSTM with peepholes.

The order of their weights is that in which the graph is executed, so they are graphs here too.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any

import torch

from orca.backends.bigdl.activations import Identity, Sigmoid, Tanh, activation_of
from orca.backends.bigdl.cells import GRU, LSTM, WITH_DROPOUT, Cell, State
from orca.backends.bigdl.graph import Input, Model
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.linear import Linear
from orca.backends.bigdl.maths import AddConstant, MulConstant
from orca.backends.bigdl.node import Node
from orca.backends.bigdl.noise import Dropout
from orca.backends.bigdl.scaling import CMul
from orca.backends.bigdl.shape import Narrow
from orca.backends.bigdl.table_layers import CAddTable, CMulTable
from orca.backends.bigdl.table_structure import JoinTable
from orca.core.arguments import check_count


class HeldDropout(Dropout):
    """Dropout with one mask for all time steps of a sequence."""

    mask: torch.Tensor | None = None

    def compute(self, x: Any) -> torch.Tensor:
        if not self.module.training:
            return super().compute(x)
        if self.mask is None or self.mask.shape != x.shape:
            self.mask = super().compute(torch.ones_like(x)).detach()
        return x * self.mask


class GraphCell(Cell):
    """A cell whose step is a graph of layers."""

    graph: Model

    def run(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        for layer in self.graph.layers:
            if isinstance(layer, HeldDropout):
                layer.mask = None
        outputs, state = super().run(x, state)
        for layer in self.graph.layers:
            if isinstance(layer, HeldDropout):
                layer.mask = None
        return outputs, state

    def step(self, z: Any, state: State) -> tuple[torch.Tensor, State]:
        output, *after = self.graph.module([z, *state])
        return output, after


def dropped(p: float, linear: Linear, source: Node) -> Node:
    """Return a linear layer with dropout in front of it."""
    return linear(HeldDropout(p)(source))


class DropoutLSTM(GraphCell, LSTM):
    """An LSTM with dropout in front of each of its eight linear layers."""

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
        Layer.__init__(self)
        self.input_size = check_count("input_size", input_size)
        self.hidden_size = check_count("hidden_size", hidden_size)
        self.fused = False
        x, h, c = Input(), Input(), Input()

        def gates(source: Node, size: int) -> Node:
            drops = [HeldDropout(p)(source) for _ in range(4)]
            linears = [Linear(size, hidden_size, True, wRegularizer, bRegularizer)(drop) for drop in drops]
            return JoinTable(1, 1)(linears)

        total = CAddTable()([gates(x, input_size), gates(h, hidden_size)])
        i, g, f, o = (Narrow(2, 1 + k * hidden_size, hidden_size)(total) for k in range(4))
        inner = [activation_of(inner_activation or Sigmoid(), "inner_activation")]
        inner += _copies(inner[0], 2)
        outer = [activation_of(activation or Tanh())]
        outer += _copies(outer[0], 1)
        candidate = CMulTable()([inner[0](i), outer[0](g)])
        cell = CAddTable()([candidate, CMulTable()([inner[1](f), c])])
        hidden = CMulTable()([outer[1](cell), inner[2](o)])
        self.graph = self.attach("graph", Model([x, h, c], [Identity()(hidden), Identity()(hidden), cell]))

    def prepare(self, x: torch.Tensor) -> Any:
        return x.unbind(1)


def _copies(layer: Layer, count: int) -> list[Layer]:
    """Return copies of an activation with names of their own: a graph holds each layer once."""
    copies = [copy.deepcopy(layer) for _ in range(count)]
    for twin in copies:
        twin.set_name(f"{type(layer).__name__}{uuid.uuid4().hex[:8]}")
    return copies


class DropoutGRU(GraphCell, GRU):
    """A GRU with dropout in front of each of its linear layers."""

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
        Layer.__init__(self)
        self.input_size = check_count("input_size", input_size)
        self.hidden_size = check_count("hidden_size", hidden_size)
        x, h = Input(), Input()
        drops = [HeldDropout(p)(x) for _ in range(2)]
        inputs = [Linear(input_size, hidden_size, True, wRegularizer, bRegularizer)(drop) for drop in drops]
        i2g = JoinTable(2, 0)(inputs)
        drops = [HeldDropout(p)(h) for _ in range(2)]
        h2g = JoinTable(2, 0)([Linear(hidden_size, hidden_size, False, wRegularizer)(drop) for drop in drops])
        total = CAddTable()([i2g, h2g])
        first, second = (Narrow(2, 1 + k * hidden_size, hidden_size)(total) for k in range(2))
        inner = activation_of(inner_activation or Sigmoid(), "inner_activation")
        r, z = inner(first), _copies(inner, 1)[0](second)
        source = dropped(p, Linear(input_size, hidden_size, True, wRegularizer, bRegularizer), x)
        reset = HeldDropout(p)(CMulTable()([h, r]))
        candidate = CAddTable()([source, Linear(hidden_size, hidden_size, False, uRegularizer)(reset)])
        new = activation_of(activation or Tanh())(candidate)
        rest = AddConstant(1)(MulConstant(-1)(z))
        value = CAddTable()([CMulTable()([new, rest]), CMulTable()([h, z])])
        self.graph = self.attach("graph", Model([x, h], [Identity()(value), Identity()(value)]))

    def prepare(self, x: torch.Tensor) -> Any:
        return x.unbind(1)


class LSTMPeephole(GraphCell):
    """A long short-term memory whose gates also see the state of the cell.

    Args:
        input_size: The number of values per time step.
        hidden_size: The size of the state.
        p: The probability of dropout in front of each gate.
        wRegularizer: The regularizer of the weights of inputs.
        uRegularizer: The regularizer of the weights of the state.
        bRegularizer: The regularizer of the bias.
    """

    states = 2

    def __init__(
        self,
        input_size: int = 4,
        hidden_size: int = 3,
        p: float = 0.0,
        wRegularizer: Any = None,
        uRegularizer: Any = None,
        bRegularizer: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.input_size = check_count("input_size", input_size)
        self.hidden_size = check_count("hidden_size", hidden_size)
        x, h, c = Input(), Input(), Input()

        def parts(place: int) -> list[Node]:
            if p:
                i2g = dropped(p, Linear(input_size, hidden_size, True, wRegularizer, bRegularizer), x)
                return [i2g, dropped(p, Linear(hidden_size, hidden_size, False, uRegularizer), h)]
            i2g = Narrow(2, 1 + place * hidden_size, hidden_size)(x)
            return [i2g, Linear(hidden_size, hidden_size, False, uRegularizer)(h)]

        def gate(place: int, state: Node) -> Node:
            return Sigmoid()(CAddTable()([*parts(place), CMul([hidden_size])(state)]))

        i, f = gate(0, c), gate(1, c)
        new = Tanh()(CAddTable()(parts(2)))
        forgotten = CMulTable()([f, c])
        cell = CAddTable()([forgotten, CMulTable()([i, new])])
        output = CMulTable()([gate(3, cell), Tanh()(cell)])
        graph = Model([x, h, c], [Identity()(output), Identity()(output), cell])
        if not p:
            pre = Linear(input_size, 4 * hidden_size, True, wRegularizer, bRegularizer)
            self.pre: Linear | None = self.attach("pre", pre)
        else:
            self.pre = None
        self.graph = self.attach("graph", graph)

    def prepare(self, x: torch.Tensor) -> Any:
        return x.unbind(1) if self.pre is None else self.pre.product(x).unbind(1)


WITH_DROPOUT.update(LSTM=DropoutLSTM, GRU=DropoutGRU)
