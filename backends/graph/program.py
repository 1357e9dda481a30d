"""A captured graph: a GraphDef with the names of all that a session needs to train, score and predict with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Port:
    """A tensor that rows are fed to, or that returns rows."""

    name: str
    """What users call it: the key in a dict, or the name of the operation."""
    tensor: str
    dtype: str
    """The numpy dtype, or "string"."""
    shape: tuple[int | None, ...] | None
    """The shape of one row; None if the rank is unknown."""

    def __str__(self) -> str:
        return f"{self.name!r} ({self.dtype}, rows of shape {'unknown' if self.shape is None else self.shape})"


@dataclass(frozen=True)
class VariableNames:
    """The operations and tensors of one variable."""

    name: str
    initializer: str
    """The operation that assigns the initial value."""
    initial: str
    """The tensor with the initial value, fed to assign another one."""
    read: str
    shape: tuple[int, ...] | None
    """The shape, if it is known."""
    proto: bytes
    """The VariableDef, from which TensorFlow recreates the variable object."""


@dataclass(frozen=True)
class Stream:
    """A metric of ``tf.metrics``: the tensor of its value and the operation that adds rows to its sums."""

    name: str
    value: str
    update: str


@dataclass(frozen=True)
class ConstantFeed:
    """A placeholder that does not take rows: its values in training, and in evaluate and predict."""

    tensor: str
    train: Any
    test: Any


@dataclass(frozen=True)
class Program:
    """A graph that runs in any process, with the names of its parts."""

    graph: bytes
    """The GraphDef."""
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    labels: tuple[Port, ...] = ()
    input_form: Any = None
    """The structure in which the user passed the inputs, with their numbers as leaves."""
    output_form: Any = None
    label_form: Any = None
    loss: str | None = None
    train: str | None = None
    """The operation that applies the gradients."""
    gradients: tuple[str, ...] = ()
    """Identity operations between the gradients and their application, where they are reduced and clipped."""
    updates: tuple[str, ...] = ()
    """Operations that run in each step, before the gradients are applied."""
    rates: Mapping[str, str] = field(default_factory=dict)
    """Tensors of the learning rates, by the prefix of an optimizer's variables; "" for a single optimizer."""
    rate: str | float | None = None
    """The first learning rate: a tensor, or a constant."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Tensors of one number per batch or per row, by the name of the metric."""
    streams: tuple[Stream, ...] = ()
    model: tuple[VariableNames, ...] = ()
    optimizer: tuple[VariableNames, ...] = ()
    local: tuple[VariableNames, ...] = ()
    """Variables that are not part of the state: the sums of `streams`, counters."""
    stream_sums: tuple[str, ...] = ()
    """Names of the local variables that hold the sums of `streams`."""
    statistics: tuple[str, ...] = ()
    """Names of the variables that update operations write and no gradient changes."""
    tables: tuple[str, ...] = ()
    """Operations that fill lookup tables."""
    feeds: tuple[ConstantFeed, ...] = ()
    unseeded: tuple[str, ...] = ()
    """Random operations of initializers that have no seed."""
    randoms: tuple[str, ...] = ()
    """Shared names of the variables that hold the states of random operations."""
    original: bytes = b""
    """The GraphDef of the outputs as the user has built it, for other programs."""
    predict_needs: tuple[str, ...] = ()
    """Labels that an output depends on, so that it cannot be predicted."""

    @property
    def variables(self) -> tuple[VariableNames, ...]:
        """All variables of the state."""
        return (*self.model, *self.optimizer)


def node_of(name: str) -> str:
    """Return the name of the operation of a tensor or of a control input.

    >>> node_of("dense/kernel:0"), node_of("^init")
    ('dense/kernel', 'init')
    """
    return name.lstrip("^").partition(":")[0]


def ancestors(graph_def: Any, targets: Iterable[str]) -> list[Any]:
    """Return the nodes that some operations depend on, and these, in the order of the graph."""
    by_name = {node.name: node for node in graph_def.node}
    waiting = [node_of(name) for name in targets]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached and name in by_name:
            reached.add(name)
            waiting += [node_of(source) for source in by_name[name].input]
            # Colocated operations are not needed to run, but the import of a GraphDef looks them up.
            waiting += [place.decode()[5:] for place in by_name[name].attr["_class"].list.s if place[:5] == b"loc:@"]
    return [node for node in graph_def.node if node.name in reached]


def called_functions(graph_def: Any, nodes: Iterable[Any]) -> list[Any]:
    """Return the functions that some nodes call, directly or through other functions."""
    library = {function.signature.name: function for function in graph_def.library.function}
    reached: dict[str, Any] = {}
    waiting = list(nodes)
    while waiting:
        for name in _called(waiting.pop()):
            if name in library and name not in reached:
                reached[name] = library[name]
                waiting += list(library[name].node_def)
    return list(reached.values())


def _called(node: Any) -> list[str]:
    names = [node.op]
    for value in node.attr.values():
        names += [value.func.name] if value.func.name else []
        names += [function.name for function in value.list.func]
    return names


def part_of(graph_def: Any, targets: Sequence[str]) -> Any:
    """Return the part of a GraphDef that some operations or tensors depend on."""
    nodes = ancestors(graph_def, targets)
    functions = called_functions(graph_def, nodes)
    names = {function.signature.name for function in functions}
    part = type(graph_def)()
    part.versions.CopyFrom(graph_def.versions)
    part.node.extend(nodes)
    part.library.function.extend(functions)
    part.library.gradient.extend(gradient for gradient in graph_def.library.gradient if gradient.function_name in names)
    return part
