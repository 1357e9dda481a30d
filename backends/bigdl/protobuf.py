"""Reads the models that BigDL's `saveModel` writes: protocol buffers, without Java."""

from __future__ import annotations

import hashlib
import inspect
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from orca.backends.bigdl import wire
from orca.backends.bigdl.cells import Cell
from orca.backends.bigdl.dimensions import INTMIN
from orca.backends.bigdl.graph import Model
from orca.backends.bigdl.layer import KINDS, Layer
from orca.backends.bigdl.node import Node
from orca.backends.bigdl.regularizer import L1L2Regularizer
from orca.backends.bigdl.unsupported import REASONS
from orca.errors import DataError, suggest

Array = npt.NDArray[Any]
_MAGIC = 3721
_STORED = {0: ">f4", 1: ">f8", 5: ">i4", 7: ">i8"}
_GRAPHS = ("StaticGraph", "DynamicGraph", "Graph")
_SAME = {
    "format": "dataformat",
    "dataformat": "format",
    "dimension": "dim",
    "dims": "dim",
    "dim": "dimension",
    "ceilmode": "toceil",
    "wregularizer": "weightregularizer",
    "bregularizer": "biasregularizer",
    "seqlength": "outputlength",
}
"""Arguments that Scala and Python call by different names."""


def read_model(path: str, weight_path: str | None = None) -> Layer:
    """Return the layer in a file of `saveModel`.

    Args:
        path: The file of the model.
        weight_path: The file of its weights, if they were saved apart.

    Raises:
        DataError: If this is not such a file, or it holds a layer that is not supported.
    """
    with open(path, "rb") as file:
        message = wire.fields(file.read())
    if not wire.text(message, 7).startswith("com.intel.analytics"):
        raise DataError(f"{path} is not a BigDL model: it does not name a layer of BigDL.")
    storages = {} if weight_path is None else read_weights(weight_path)
    attributes = wire.mapping(message, 8)
    if "global_storage" in attributes:
        listing = wire.fields(wire.fields(attributes["global_storage"])[14][-1])
        for value in wire.mapping(listing, 2).values():
            tensor = wire.fields(wire.fields(value)[10][-1])
            storage = wire.fields(tensor[8][-1])
            storages[wire.integer(storage, 9)] = _storage(storage)
    return _Reader(storages).layer(message)


def read_weights(path: str) -> dict[int, Array]:
    """Return the arrays of a weight file by their number."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        magic, count = struct.unpack_from(">ii", data)
        if magic != _MAGIC:
            raise DataError(f"{path} is not a weight file of BigDL.")
        place, storages = 8, {}
        for _ in range(count):
            key, kind, size = struct.unpack_from(">iii", data, place)
            if kind not in _STORED:
                raise DataError(f"{path} holds data of type {kind}, which is not supported.")
            dtype = np.dtype(_STORED[kind])
            storages[key] = np.frombuffer(data, dtype, size, place + 12).astype(dtype.newbyteorder("="))
            place += 12 + size * dtype.itemsize
        (length,) = struct.unpack_from(">i", data, place)
    except (struct.error, ValueError):
        raise DataError(f"{path} is not a weight file of BigDL, or it was cut off.") from None
    if hashlib.md5(data[:place], usedforsecurity=False).digest() != data[place + 4 : place + 4 + length]:
        raise DataError(f"{path} is damaged: its checksum does not match.")
    return storages


def _storage(storage: wire.Fields) -> Array:
    if 3 in storage:
        return np.asarray(wire.numbers(storage, 3, "<f8"))
    if 6 in storage:
        return np.asarray(wire.integers(storage, 6))
    return np.asarray(wire.numbers(storage, 2, "<f4"))


class _Reader:
    """Creates layers of messages; `storages` holds the values of tensors by number."""

    def __init__(self, storages: dict[int, Array]) -> None:
        self.storages = storages
        self.shared: dict[int, Layer] = {}

    def layer(self, message: wire.Fields) -> Layer:
        kind = wire.text(message, 7).rpartition(".")[2]
        key = wire.integer(message, 12)
        if key and key in self.shared:
            return self.shared[key]
        attributes = wire.mapping(message, 8)
        children = [wire.fields(child) for child in message.get(2, [])]
        if kind in _GRAPHS:
            layer: Layer = self._graph(attributes, children)
        elif kind == "BiRecurrent" and "birnn" in attributes:
            layer = self.layer(wire.fields(wire.fields(attributes["birnn"])[13][-1]))
        elif kind in ("Recurrent", "RecurrentDecoder"):
            layer = self._recurrent(kind, attributes, children)
        else:
            inside = [self.layer(child) for child in children]
            layer = self._created(kind, attributes, inside)
            for child in inside:
                if child not in layer.added():  # type: ignore[attr-defined]
                    layer.add(child)  # type: ignore[attr-defined]
            if not children:
                self._fill(layer, message)
        self._statistics(layer, attributes)
        if name := wire.text(message, 1):
            layer.set_name(name)
        layer.training(bool(wire.integer(message, 10)))
        if key:
            self.shared[key] = layer
        return layer

    def _created(self, kind: str, attributes: dict[str, Any], inside: list[Layer]) -> Layer:
        if kind == "Input":
            kind = "Identity"
        classes = _classes()
        if kind not in classes:
            known = f" {REASONS[kind]}." if kind in REASONS else suggest(kind, classes)
            raise DataError(f"The file holds a layer {kind!r}, which is not supported.{known}")
        parameters = inspect.signature(classes[kind].__init__).parameters
        named = {key.replace("_", "").lower(): key for key in parameters}
        arguments: dict[str, Any] = {}
        for key, data in attributes.items():
            plain = key.replace("_", "").lower()
            target = named.get(plain) or named.get(_SAME.get(plain, ""))
            if target is None or (target.startswith("init_") and target != "init_p"):
                continue
            value = self.value(wire.fields(data))
            if value is not None:
                arguments[target] = value
        if kind == "Reshape":
            arguments["batch_mode"] = {1: False, 2: True}.get(arguments.pop("batch_mode", 0))
        if kind == "Transpose":
            arguments["permutations"] = self._pairs(attributes)
        if kind == "Squeeze":
            arguments["num_input_dims"] = 0 if self._flag(attributes, "batchMode") else INTMIN
        if inside:
            arguments = {key: value for key, value in arguments.items() if not isinstance(value, Layer)}
            # Containers of one layer take it as an argument.
            arguments |= {key: inside[0] for key in ("module", "model") if key in parameters}
        try:
            return classes[kind](**arguments)
        except TypeError as error:
            raise DataError(f"The file describes a {kind} in a form that is not supported: {error}.") from None

    def _flag(self, attributes: dict[str, Any], key: str) -> bool:
        return key in attributes and bool(self.value(wire.fields(attributes[key])))

    def _pairs(self, attributes: dict[str, Any]) -> list[tuple[int, int]]:
        size = self.value(wire.fields(attributes["size"]))
        parts = [self.value(wire.fields(attributes[f"permutation_{index}"])) for index in range(size)]
        return [(part[0], part[1]) for part in parts]

    def _graph(self, attributes: dict[str, Any], children: list[wire.Fields]) -> Layer:
        nodes = {}
        for child in children:
            layer = self.layer(child)
            nodes[layer.name()] = (Node(layer, []), wire.texts(child, 5))
        for node, before in nodes.values():
            node.previous = [nodes[name][0] for name in before if name in nodes]
        inputs, outputs = (self.value(wire.fields(attributes[key])) for key in ("inputNames", "outputNames"))
        try:
            model = Model([nodes[name][0] for name in inputs], [nodes[name][0] for name in outputs])
        except KeyError as error:
            raise DataError(f"The graph in the file has no layer {error}.") from None
        if "stopGradientLayers" in attributes:
            model.stop_gradient(self.value(wire.fields(attributes["stopGradientLayers"])))
        return model

    def _recurrent(self, kind: str, attributes: dict[str, Any], children: list[wire.Fields]) -> Layer:
        arguments = (
            {"output_length": self.value(wire.fields(attributes["seqLength"]))} if "seqLength" in attributes else {}
        )
        layer: Any = _classes()[kind](**arguments)
        cells = [child for child in children if self._is_cell(child)]
        if len(cells) != 1:
            raise DataError(f"The file holds a {kind} with a cell that is not supported.")
        cell = cells[0]
        layer.add(self._created(wire.text(cell, 7).rpartition(".")[2], wire.mapping(cell, 8), []))
        weights = [weight for child in children for weight in self._weights(child)]
        self._set(layer, weights)
        return layer  # type: ignore[no-any-return]

    def _is_cell(self, message: wire.Fields) -> bool:
        kind = _classes().get(wire.text(message, 7).rpartition(".")[2])
        return kind is not None and issubclass(kind, Cell)

    def _weights(self, message: wire.Fields) -> list[Array]:
        if 16 in message:
            return [self._tensor(wire.fields(tensor)) for tensor in message[16]]
        own = [self._tensor(wire.fields(message[field][-1])) for field in (3, 4) if field in message]
        inside = [weight for child in message.get(2, []) for weight in self._weights(wire.fields(child))]
        return [weight for weight in own if weight.size] or inside

    def _fill(self, layer: Layer, message: wire.Fields) -> None:
        weights = self._weights(message)
        if weights:
            self._set(layer, weights)

    def _set(self, layer: Layer, weights: list[Array]) -> None:
        expected = [tuple(parameter.shape) for parameter in layer.weight_parameters()]
        if [weight.size for weight in weights] != [int(np.prod(shape)) for shape in expected]:
            shapes = [weight.shape for weight in weights]
            raise DataError(f"The file holds weights of the shapes {shapes} for {layer!r}, which has {expected}.")
        layer.set_weights([weight.reshape(shape) for weight, shape in zip(weights, expected, strict=True)])

    def _statistics(self, layer: Layer, attributes: dict[str, Any]) -> None:
        setters: Any = {"runningMean": "set_running_mean", "runningVar": "set_running_std"}
        for key, setter in setters.items():
            if key in attributes and hasattr(layer, setter):
                value = self.value(wire.fields(attributes[key]))
                if value is not None and value.size:
                    getattr(layer, setter)(value)

    def _tensor(self, tensor: wire.Fields) -> Array:
        sizes, strides = wire.integers(tensor, 2), wire.integers(tensor, 3)
        if not sizes or 8 not in tensor:
            return np.zeros(0, np.float32)
        storage = wire.fields(tensor[8][-1])
        key = wire.integer(storage, 9)
        data = self.storages.get(key)
        if data is None:
            data = _storage(storage)
        first = max(0, wire.integer(tensor, 4) - 1)
        if not data.size or first + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) >= data.size:
            raise DataError(
                "The file does not hold the weights of all its layers. Pass the weight file as weight_path=."
            )
        steps = [stride * data.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(data[first:], sizes, steps).copy()

    def value(self, attribute: wire.Fields) -> Any:
        """Return the value of an attribute."""
        plain: dict[int, Callable[[], Any]] = {
            3: lambda: wire.integer(attribute, 3),
            4: lambda: wire.integer(attribute, 4, 64),
            5: lambda: wire.number(attribute, 5, "<f"),
            6: lambda: wire.number(attribute, 6, "<d"),
            7: lambda: wire.text(attribute, 7),
            8: lambda: bool(wire.integer(attribute, 8)),
            9: lambda: self._regularizer(wire.fields(attribute[9][-1])),
            10: lambda: self._tensor(wire.fields(attribute[10][-1])),
            13: lambda: self._module(attribute),
            15: lambda: self._array(wire.fields(attribute[15][-1])),
            16: lambda: ("NCHW", "NHWC")[wire.integer(attribute, 16)],
        }
        for field, read in plain.items():
            if field in attribute:
                return read()
        # A missing value is the default of its type.
        return {0: 0, 1: 0, 2: 0.0, 3: 0.0, 4: "", 5: False, 16: "NCHW"}.get(wire.integer(attribute, 1))

    def _module(self, attribute: wire.Fields) -> Layer | None:
        message = wire.fields(attribute[13][-1])
        return self.layer(message) if 7 in message else None

    def _regularizer(self, message: wire.Fields) -> L1L2Regularizer | None:
        data = wire.numbers(message, 2, "<f8")
        if not len(data):
            return None
        kind = wire.integer(message, 1)
        l1, l2 = (data[0], data[1]) if kind == 0 and len(data) > 1 else (data[0], 0.0) if kind == 1 else (0.0, data[-1])
        return L1L2Regularizer(float(l1), float(l2))

    def _array(self, message: wire.Fields) -> list[Any] | None:
        if wire.integer(message, 1) == -1:
            return None
        if 7 in message:
            return wire.texts(message, 7)
        if 13 in message:
            return [self.layer(wire.fields(child)) for child in message[13]]
        if 6 in message:
            return [float(item) for item in wire.numbers(message, 6, "<f8")]
        if 5 in message:
            return [float(item) for item in wire.numbers(message, 5, "<f4")]
        return wire.integers(message, 3)


def _classes() -> dict[str, type[Layer]]:
    """Return the classes with the conventions of BigDL by name."""
    return {
        kind.__name__: kind for kind in KINDS.values() if kind.style == "bigdl" and not kind.__name__.startswith("_")
    }
