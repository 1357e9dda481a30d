"""Layers as plain values: the calls that create them, without code; weights are kept apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from orca.backends.bigdl import initialization, regularizer
from orca.backends.bigdl.container import Container
from orca.backends.bigdl.graph import Model
from orca.backends.bigdl.keras_layer import KerasLayer, KerasNode, check_shape
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.node import Node
from orca.backends.bigdl.samples import JTensor
from orca.errors import ArgumentError, DataError, suggest

Classes = dict[str, type[Layer]]


def describe(layer: Layer) -> dict[str, Any]:
    """Return a layer as a value for JSON; a layer that occurs twice is described once."""
    return _Describer().layer(layer)


class _Describer:
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def layer(self, layer: Layer) -> dict[str, Any]:
        if id(layer) in self.seen:
            return {"same": self.seen[id(layer)]}
        self.seen[id(layer)] = len(self.seen)
        entry: dict[str, Any] = {"class": type(layer).__name__, "module": type(layer).__module__, "name": layer.name()}
        graph = layer if isinstance(layer, Model) else getattr(layer, "graph", None)
        if isinstance(layer, Model | KerasLayer) and isinstance(graph, Model):
            nodes = graph._nodes
            places = {id(node): place for place, node in enumerate(nodes)}
            entry["nodes"] = [[self.layer(node.layer), [places[id(p)] for p in node.previous]] for node in nodes]
            entry["inputs"] = [places[id(node)] for node in graph.inputs]
            entry["outputs"] = [places[id(node)] for node in graph.outputs]
            entry["stopped"] = sorted(graph._stopped)
        else:
            entry["arguments"] = {key: self.value(value) for key, value in layer.arguments.items()}
            inside = {id(value) for value in layer.arguments.values()}
            added = layer.added() if isinstance(layer, Container) or hasattr(layer, "added") else []
            entry["added"] = [self.layer(child) for child in added if id(child) not in inside]
            if isinstance(layer, KerasLayer) and layer.labor is not None:
                entry["built"] = layer.input_shape
        entry["regularizers"] = {
            key: [weight.regularizer.l1, weight.regularizer.l2]
            for key, weight in layer._weights.items()
            if weight.regularizer is not None
        }
        entry["names"] = [child.name() for child in layer.walk()][1:]
        return entry

    def value(self, value: Any) -> Any:
        if isinstance(value, Layer):
            return {"layer": self.layer(value)}
        if isinstance(value, regularizer.L1L2Regularizer):
            return {"regularizer": [value.l1, value.l2]}
        if isinstance(value, initialization.InitializationMethod):
            return {"initialization": type(value).__name__, "values": vars(value)}
        if isinstance(value, np.ndarray | JTensor):
            return None  # first weights; the weights are saved with the layer
        if isinstance(value, list | tuple):
            first_weights = any(isinstance(item, np.ndarray | JTensor) for item in value)
            return None if first_weights else [self.value(item) for item in value]
        if isinstance(value, np.generic):
            return value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ArgumentError(f"A layer holds a {type(value).__name__}, which cannot be saved.")


def create(entry: dict[str, Any], classes: Classes) -> Layer:
    """Return the layer that a value describes, with new weights.

    Args:
        entry: What `describe` has returned.
        classes: The classes that may occur, by module and name.

    Raises:
        DataError: If a class is not known.
    """
    return _Creator(classes).layer(entry)


class _Creator:
    def __init__(self, classes: Classes) -> None:
        self.classes = classes
        self.made: list[Layer | None] = []

    def layer(self, entry: dict[str, Any]) -> Layer:
        if "same" in entry:
            known = self.made[int(entry["same"])]
            if known is None:
                raise DataError("The file describes a layer that contains itself.")
            return known
        place = len(self.made)
        self.made.append(None)
        key = f"{entry['module']}.{entry['class']}"
        if key not in self.classes:
            names = [name.rpartition(".")[2] for name in self.classes]
            raise DataError(
                f"The file holds a layer {entry['class']!r}, which is not known.{suggest(entry['class'], names)}"
            )
        kind = self.classes[key]
        layer: Layer
        layer = self._graph(entry, kind) if "nodes" in entry else kind(**self._arguments(entry["arguments"]))
        self.made[place] = layer
        for child in entry.get("added", []):
            layer.add(self.layer(child))  # type: ignore[attr-defined]
        if isinstance(layer, KerasLayer) and entry.get("built") is not None:
            layer.build(check_shape("built", entry["built"]))
        for name, (l1, l2) in entry["regularizers"].items():
            layer._weights[name].regularizer = regularizer.L1L2Regularizer(l1, l2)
        inside = list(layer.walk())[1:]
        for child, name in zip(inside, entry["names"], strict=True):
            child.set_name(name)
        layer.set_name(entry["name"])
        return layer

    def _graph(self, entry: dict[str, Any], kind: Any) -> Layer:
        nodes: list[Any] = []
        for child, before in entry["nodes"]:
            nodes.append(self._node(self.layer(child), [nodes[place] for place in before]))
        ends = [[nodes[place] for place in entry[key]] for key in ("inputs", "outputs")]
        model: Layer = kind(*(end if len(end) > 1 else end[0] for end in ends))
        graph: Any = model if isinstance(model, Model) else model.graph  # type: ignore[attr-defined]
        if entry["stopped"]:
            graph.stop_gradient(entry["stopped"])
        return model

    def _node(self, layer: Layer, before: list[Any]) -> Node:
        if not isinstance(layer, KerasLayer):
            return Node(layer, before)
        return layer(before) if before else KerasNode(layer, [], layer.build(layer.input_shape))

    def _arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {key: self.value(value) for key, value in arguments.items()}

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "layer" in value:
            return self.layer(value["layer"])
        if "regularizer" in value:
            return regularizer.L1L2Regularizer(*value["regularizer"])
        kind = getattr(initialization, value["initialization"])
        method = kind.__new__(kind)
        vars(method).update(value["values"])
        return method
