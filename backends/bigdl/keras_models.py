"""Models in the style of Keras 1: Sequential and graphs of layers."""

from __future__ import annotations

from typing import Any, Self

from orca.backends.bigdl import container, graph
from orca.backends.bigdl.activations import Identity
from orca.backends.bigdl.keras_core import Merge
from orca.backends.bigdl.keras_layer import KerasLayer, KerasNode, Shape, check_shape, probed
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.node import Node
from orca.core.arguments import check_text, shown
from orca.errors import ArgumentError, listed, suggest


class InputLayer(KerasLayer):
    """Returns its input; the first layer of a model may be one.

    Args:
        input_shape: The shape of a row.
    """

    def __init__(self, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)

    def make(self, shape: Shape) -> Layer:
        return Identity()


def Input(shape: Any = None, name: str | None = None) -> KerasNode:
    """Return an input of a graph.

    Args:
        shape: The shape of a row; None for any size.
        name: The name of the input.
    """
    size = check_shape("shape", shape)
    if size is None:
        raise ArgumentError("shape=None: an input needs the shape of a row, such as (4,).")
    layer = InputLayer(size, name)
    layer.build(size)
    return KerasNode(layer, [], size)


def merge(inputs: Any, mode: str = "sum", concat_axis: int = -1, name: str | None = None) -> KerasNode:
    """Return a node that combines nodes.

    Args:
        inputs: The nodes, at least two.
        mode: "sum", "mul", "max", "min", "ave", "sub", "div", "concat", "dot" or "cos".
        concat_axis: The axis of "concat", which counts the batch as 0.
        name: The name of the layer.
    """
    if not isinstance(inputs, list | tuple) or len(inputs) < 2:
        raise ArgumentError(f"inputs={shown(inputs)}: expected a list of at least two nodes.")
    return Merge(mode=mode, concat_axis=concat_axis, name=name)(list(inputs))


class KerasModel(KerasLayer):
    """What both kinds of models have; they are layers too."""

    def inner_layers(self) -> list[Layer]:
        """Return the layers of the model."""
        raise NotImplementedError

    @property
    def layers(self) -> list[Layer]:
        """The layers of this model."""
        return self.inner_layers()

    def flattened_layers(self, include_container: bool = False) -> list[Layer]:
        """Return all layers, also those of models inside."""
        flat: list[Layer] = []
        for layer in self.layers:
            if not isinstance(layer, KerasModel):
                flat.append(layer)
                continue
            flat += [layer] if include_container else []
            flat += layer.flattened_layers(include_container)
        return flat

    def get_layer(self, name: str) -> Layer:
        """Return the layer with a name."""
        table = {layer.name(): layer for layer in self.layers}
        if name not in table:
            raise ArgumentError(f"No layer is named {name!r}.{suggest(name, table) or f' Layers: {listed(table)}.'}")
        return table[name]

    def freeze_up_to(self, names: Any) -> Self:
        """Exclude the layers from the input up to some layers from training.

        Args:
            names: The names of the last layers to freeze.
        """
        for layer in self.before([names] if isinstance(names, str) else list(names)):
            layer.freeze()
        return self

    def before(self, names: list[str]) -> list[Layer]:
        """Return the layers with names and all in front of them."""
        raise NotImplementedError

    def summary(self, line_length: int = 100) -> None:
        """Print the layers with the shapes of their outputs and the numbers of their weights."""
        width = max(20, line_length // 3)
        print(f"{'Layer':<{width}}{'Output shape':<{width}}{'Weights':>12}")
        total = 0
        for layer in self.layers:
            count = sum(parameter.numel() for parameter in layer.weight_parameters())
            total += count
            shape = layer.get_output_shape() if isinstance(layer, KerasLayer) else None
            print(f"{f'{layer.name()} ({type(layer).__name__})':<{width}}{shape!s:<{width}}{count:>12,}")
        trained = sum(p.numel() for p in self.module.parameters() if p.requires_grad)
        print(f"{total:,} weights, {trained:,} of them trained")


class KerasSequential(KerasModel):
    """Runs layers one after another.

    >>> from orca.backends.bigdl.keras_core import Dense
    >>> model = KerasSequential().add(Dense(3, input_shape=(4,))).add(Dense(2, activation="softmax"))
    >>> model.get_output_shape()
    (None, 2)
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(None, name)
        self.stack = container.Sequential()
        self.labor = self.attach("labor", self.stack)

    def inner_layers(self) -> list[Layer]:
        return self.stack.added()

    def added(self) -> list[Layer]:
        """Return the layers that `add` has received."""
        return self.stack.added()

    def add(self, model: Layer) -> Self:
        """Append a layer; the first one needs an `input_shape`.

        Args:
            model: The layer.

        Returns:
            This model.
        """
        if not isinstance(model, Layer):
            raise ArgumentError(f"{type(self).__name__} received {shown(model)}; expected a layer.")
        shape = self.output_shape
        if shape is None:
            shape = model.input_shape if isinstance(model, KerasLayer) else None
            if shape is None:
                raise ArgumentError(f"{model!r} is the first layer of the model: it needs input_shape=.")
            self.input_shape = shape
        self.output_shape = model.build(shape) if isinstance(model, KerasLayer) else probed(model, shape)
        self.stack.add(model)
        return self

    def build(self, shape: Shape) -> Shape:
        """Check the shape of a row, and return that of the output."""
        if self.input_shape is None:
            raise ArgumentError(f"{self!r} has no layers. Add some with add().")
        self.output_shape = probed(self, shape)
        return self.output_shape

    def make(self, shape: Shape) -> Layer:
        return self.stack

    def before(self, names: list[str]) -> list[Layer]:
        places = [self.layers.index(self.get_layer(name)) for name in names]
        return self.layers[: max(places) + 1]


class KerasGraph(KerasModel):
    """A graph of layers.

    Args:
        input: The node of `Input`, or a list of them.
        output: The output node, or a list of them.
        name: The name of the model.
    """

    def __init__(self, input: Any, output: Any, name: str | None = None) -> None:
        super().__init__(None, name)
        self.arguments = {}  # the graph keeps its nodes
        inputs = list(input) if isinstance(input, list | tuple) else [input]
        outputs = list(output) if isinstance(output, list | tuple) else [output]
        for node in [*inputs, *outputs]:
            if not isinstance(node, KerasNode):
                raise ArgumentError(f"{shown(node)}: expected a node, which Input(shape=…) and calling a layer return.")
        self.graph = graph.Model(inputs, outputs)
        self.labor = self.attach("labor", self.graph)
        shapes = [node.shape for node in inputs], [node.shape for node in outputs]
        self.input_shape, self.output_shape = (s if len(s) > 1 else s[0] for s in shapes)

    def inner_layers(self) -> list[Layer]:
        return self.graph.added()

    def build(self, shape: Shape) -> Shape:
        """Check the shape of a row, and return that of the output."""
        return probed(self, shape)

    def make(self, shape: Shape) -> Layer:
        return self.graph

    def before(self, names: list[str]) -> list[Layer]:
        found: dict[int, Layer] = {}

        def visit(node: Node) -> None:
            if id(node.layer) not in found:
                found[id(node.layer)] = node.layer
                for earlier in node.previous:
                    visit(earlier)

        for name in names:
            visit(self.graph.node(check_text("names", name)))
        return list(found.values())

    def new_graph(self, outputs: Any) -> KerasGraph:
        """Return the part of the model that ends with some layers, with the same weights.

        Args:
            outputs: The names of the last layers.
        """
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        ends = [self.graph.node(name) for name in names]
        used = {id(node) for node in graph.executed(ends)}
        starts = [node for node in self.graph.inputs if id(node) in used]
        return type(self)(starts if len(starts) > 1 else starts[0], ends if len(ends) > 1 else ends[0])
