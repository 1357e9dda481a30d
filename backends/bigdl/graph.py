"""Graphs of layers: the order of execution is fixed when the model is created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from orca.backends.bigdl.actions import act
from orca.backends.bigdl.activations import Identity
from orca.backends.bigdl.container import Container
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.left_out import NotLoaded
from orca.backends.bigdl.node import Node, nodes
from orca.errors import ArgumentError, DataError, listed, suggest


class Input(Node):
    """An input of a graph."""

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__(Identity(), [])


class Model(Container, NotLoaded):
    """A graph of layers.

    Args:
        inputs: The input node or nodes. A layer instead of nodes is run before a second one, without gradients.
        outputs: The output node or nodes, or that second layer.

    >>> from orca.backends.bigdl.linear import Linear
    >>> import numpy as np
    >>> start = Input()
    >>> Model(start, Linear(4, 2)(start)).forward(np.ones([3, 4])).shape
    (3, 2)
    """

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        jvalue: Any = None,
        bigdl_type: str = "float",
        byte_order: str = "little_endian",
        model_type: str = "bigdl",
    ) -> None:
        super().__init__()
        self.arguments = {}  # nodes are kept in a flat form instead
        barrier = None
        if isinstance(inputs, Layer) and isinstance(outputs, Layer):
            start, barrier = Input(), Identity()
            inputs, outputs = start, outputs(barrier(inputs(start)))
        self.inputs, self.outputs = nodes(inputs, "inputs"), nodes(outputs, "outputs")
        self._nodes = executed(self.outputs)
        self._check()
        names: dict[int, str] = {}
        for index, node in enumerate(self._nodes):
            if id(node.layer) not in names:
                names[id(node.layer)] = str(index)
                self.attach(str(index), node.layer)
        self._names = [names[id(node.layer)] for node in self._nodes]
        self._stopped: set[str] = set() if barrier is None else {barrier.name()}
        self._compile()

    def _check(self) -> None:
        roots = [node for node in self._nodes if not node.previous]
        given = {id(node) for node in self.inputs}
        for node in self.inputs:
            if all(node is not root for root in roots):
                what = "has nodes before it" if node.previous else "is not connected to an output"
                raise ArgumentError(
                    f"inputs: {node!r} {what}. Pass the inputs that the outputs depend on, and no others."
                )
        for root in roots:
            if id(root) not in given:
                raise ArgumentError(f"inputs: {root!r} is an input of the graph, but is not in the list. Add it.")

    def _compile(self) -> None:
        """Fix the order of execution, as places in a list of values."""
        places = {id(node): place for place, node in enumerate(self._nodes)}
        starts = {id(node): place for place, node in enumerate(self.inputs)}
        self._program: list[tuple[str, int | None, tuple[int, ...], bool]] = [
            (
                name,
                starts.get(id(node)),
                tuple(places[id(p)] for p in node.previous),
                node.layer.name() in self._stopped,
            )
            for name, node in zip(self._names, self._nodes, strict=True)
        ]
        self._results = [places[id(node)] for node in self.outputs]

    def compute(self, x: Any) -> Any:
        modules: Any = self.module._modules
        several = len(self.inputs) > 1
        if several and (not isinstance(x, list | tuple) or len(x) != len(self.inputs)):
            count = len(x) if isinstance(x, list | tuple) else 1
            raise DataError(f"{self!r} has {len(self.inputs)} inputs; received {count}.")
        values: list[Any] = []
        for name, start, before, stopped in self._program:
            if start is not None:
                value = x[start] if several else x
            elif len(before) == 1:
                value = values[before[0]]
            else:
                value = [values[place] for place in before]
            values.append(modules[name](_detached(value) if stopped else value))
        results = [values[place] for place in self._results]
        return results[0] if len(results) == 1 else results

    def node(self, name: str) -> Node:
        """Return the node of the layer with a name.

        Args:
            name: The name.
        """
        for node in self._nodes:
            if node.layer.name() == name:
                return node
        known = [node.layer.name() for node in self._nodes]
        raise ArgumentError(f"No node is named {name!r}.{suggest(name, known) or f' Nodes: {listed(known)}.'}")

    @staticmethod
    def loadModel(modelPath: str, weightPath: str | None = None, bigdl_type: str = "float") -> Layer:
        """Return the layer that `saveModel` has saved, here or in BigDL.

        Args:
            modelPath: The file.
            weightPath: The file of the weights, if they were saved apart.
        """
        return act("load", modelPath, weightPath)  # type: ignore[no-any-return]

    @staticmethod
    def load(path: str, bigdl_type: str = "float") -> Layer:
        """Return the layer that `save` has saved; the Java objects that BigDL's `save` writes are refused."""
        return Model.loadModel(path)

    def stop_gradient(self, stop_layers: Any, bigdl_type: str = "float") -> Self:
        """Do not compute the gradients of the inputs of some layers.

        Args:
            stop_layers: The names of the layers.

        Returns:
            This model.
        """
        for name in [stop_layers] if isinstance(stop_layers, str) else stop_layers:
            self.node(name)
            self._stopped.add(name)
        self._compile()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Nodes refer to each other; a flat list keeps deep graphs within the recursion limit of pickle.
        places = {id(node): place for place, node in enumerate(self._nodes)}
        state = super().__getstate__()
        state["_nodes"] = [
            (type(node), {**vars(node), "previous": [places[id(p)] for p in node.previous]}) for node in self._nodes
        ]
        state["inputs"] = [places[id(node)] for node in self.inputs]
        state["outputs"] = [places[id(node)] for node in self.outputs]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._restore()

    def _restore(self) -> None:
        flat: Any = self._nodes
        if flat and isinstance(flat[0], tuple):
            rebuilt = [kind.__new__(kind) for kind, _ in flat]
            for node, (_, values) in zip(rebuilt, flat, strict=True):
                node.__dict__.update(values)
                node.previous = [rebuilt[place] for place in values["previous"]]
            self._nodes = rebuilt
            starts: Any = self.inputs
            ends: Any = self.outputs
            self.inputs, self.outputs = [rebuilt[i] for i in starts], [rebuilt[i] for i in ends]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = super().__deepcopy__(memo)
        twin._restore()
        return twin


def _detached(value: Any) -> Any:
    return [_detached(item) for item in value] if isinstance(value, list) else value.detach()


def executed(outputs: list[Node]) -> list[Node]:
    """Return the nodes on which outputs depend in BigDL's order of execution, which is that of its weights.

    That order is a topological sort from the outputs, in which nodes that are ready are taken in the order in which a
    depth-first search has met them, reversed.
    """
    end = Node(Identity(), list(outputs))
    counts: dict[int, int] = {id(end): 0}
    known: dict[int, Node] = {id(end): end}
    for node in _depth_first(end):
        for before in node.previous:
            known[id(before)] = before
            counts[id(before)] = counts.get(id(before), 0) + 1
    order: list[Node] = []
    while counts:
        ready = [known[key] for key, count in counts.items() if count == 0]
        if not ready:
            raise ArgumentError("The graph has a cycle: some node depends on its own output.")
        order.extend(ready)
        for node in ready:
            for before in node.previous:
                counts[id(before)] -= 1
            del counts[id(node)]
    return [node for node in reversed(order) if node is not end]


def _depth_first(start: Node) -> Iterator[Node]:
    stack, waiting, visited = [start], {id(start)}, set[int]()
    while stack:
        node = stack.pop()
        waiting.discard(id(node))
        visited.add(id(node))
        for before in dict.fromkeys(map(id, node.previous)):
            if before not in visited and before not in waiting:
                stack.append(next(p for p in node.previous if id(p) == before))
                waiting.add(before)
        yield node
