"""Checks what users pass as tensors, alone, in lists or dicts, by object or by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1
from tensorflow.python.framework import ops

from orca.backends.graph.program import Port
from orca.core.arguments import shown, wrong
from orca.errors import ArgumentError, listed, suggest
from orca.shards.tree import leaves, tree_map

_KINDS = "a tensor of a graph, a list or a dict of them"


class Resolver:
    """Finds tensors of one graph, which the first tensor decides unless it is given."""

    def __init__(self, graph: Any = None) -> None:
        self.graph = graph
        self._first = ""

    def one(self, argument: str, value: Any) -> Any:
        """Return the tensor that a user's value stands for."""
        if isinstance(value, str):
            return self._by_name(argument, value)
        if isinstance(value, ops.EagerTensor):
            raise ArgumentError(
                f"{argument}= is an eager tensor, which has a value but no graph. Build the model within "
                "`with tf.Graph().as_default():`, or after a placeholder of orca.tf1."
            )
        kind = type(value).__name__
        if kind == "KerasTensor":
            raise ArgumentError(f"{argument}= is a tensor of a Keras model: use Estimator.from_keras(model=...).")
        if isinstance(value, v1.Variable):
            value = self._of_variable(argument, value)
        if not isinstance(value, v1.Tensor):
            raise wrong(argument, value, _KINDS)
        self._check_graph(argument, value)
        return value

    def tree(self, argument: str, value: Any) -> Any:
        """Return the tensors of a structure: a tensor, a list or a dict of them."""
        if isinstance(value, Mapping):
            if not value or not all(isinstance(key, str) for key in value):
                raise wrong(argument, value, _KINDS)
            return {key: self.one(f"{argument}[{key!r}]", part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.one(f"{argument}[{number}]", part) for number, part in enumerate(value)]
        return self.one(argument, value)

    def operation(self, argument: str, value: Any) -> Any:
        """Return an operation of the graph, or that of a tensor."""
        if isinstance(value, v1.Operation):
            self._check_graph(argument, value)
            return value
        return self.one(argument, value).op

    def _of_variable(self, argument: str, variable: Any) -> Any:
        element = getattr(variable, "_graph_element", None)
        if isinstance(element, v1.Tensor) and not isinstance(element, ops.EagerTensor):
            return element
        raise ArgumentError(f"{argument}= is an eager variable. Build it within `with tf.Graph().as_default():`.")

    def _by_name(self, argument: str, name: str) -> Any:
        graph = self.graph if self.graph is not None else v1.get_default_graph()
        full = name if ":" in name else f"{name}:0"
        try:
            return self.one(argument, graph.get_tensor_by_name(full))
        except (KeyError, ValueError):
            names = [operation.name for operation in graph.get_operations()]
            raise ArgumentError(
                f"{argument}={name!r} is not a tensor of the graph, which has {len(names)} operations: "
                f"{listed(names, most=10)}." + suggest(full.partition(":")[0], names)
            ) from None

    def _check_graph(self, argument: str, element: Any) -> None:
        if self.graph is None:
            self.graph = element.graph
        if element.graph is not self.graph:
            raise ArgumentError(
                f"{argument}={element.name!r} belongs to another graph than {self._first or 'the others'}. Build "
                "inputs, loss and metrics in one graph."
            )
        self._first = self._first or f"{argument.partition('[')[0]}={element.name!r}"


def ports_of(tree: Any, argument: str, batched: bool = True) -> tuple[tuple[Port, ...], Any]:
    """Return the tensors of a structure as ports, and the structure with their numbers as leaves."""
    tensors = list(leaves(tree))
    ports = tuple(_port(name, tensor, argument, isinstance(tree, dict), batched) for name, tensor in tensors)
    numbers = iter(range(len(ports)))
    return ports, tree_map(lambda _: next(numbers), tree)


def _port(name: str, tensor: Any, argument: str, by_key: bool, batched: bool) -> Port:
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    label = name if by_key else tensor.op.name
    if batched and shape is not None:
        if not shape:
            raise ArgumentError(
                f"{argument}={tensor.name!r} has shape (): it has no axis of rows. Its first axis must be the rows."
            )
        if shape[0] is not None and argument != "outputs":
            raise ArgumentError(
                f"{argument}={tensor.name!r} has shape {shape}, a fixed number of rows; batches differ in size. Create "
                f"the placeholder with shape {(None, *shape[1:])}."
            )
    return Port(label, tensor.name, dtype_name(tensor.dtype), None if shape is None else shape[1:])


def dtype_name(dtype: Any) -> str:
    """Return the name of the numpy dtype of a TensorFlow dtype, or "string"."""
    base = dtype.base_dtype
    return "string" if base == v1.string else str(np.dtype(base.as_numpy_dtype).name)


def check_loss(loss: Any) -> None:
    """Raise unless a loss is one number."""
    if loss.shape.rank not in (None, 0):
        raise ArgumentError(
            f"loss={loss.name!r} has shape {tuple(loss.shape.as_list())}; expected a scalar, the mean over the rows: "
            "use tf.reduce_mean(loss)."
        )
    if not loss.dtype.is_floating:
        raise ArgumentError(f"loss={loss.name!r} has dtype {loss.dtype.name}; expected floating point numbers.")


def check_metrics(metrics: Any) -> dict[str, Any]:
    """Return the tensors and pairs among metrics by name; everything else is Orca's own."""
    if not isinstance(metrics, Mapping):
        return {}
    return {str(name): value for name, value in metrics.items() if is_tensor_metric(value)}


def is_tensor_metric(value: object) -> bool:
    """Whether a metric is a tensor, or the pair of tensors that ``tf.metrics`` returns."""
    if isinstance(value, list | tuple):
        return len(value) == 2 and all(isinstance(part, v1.Tensor | v1.Operation) for part in value)
    return isinstance(value, v1.Tensor)


def split_feed(name: str, value: Any) -> tuple[Any, Any]:
    """Return the values of a placeholder in training, and in evaluate and predict."""
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ArgumentError(
                f"feed_dict[{name!r}]={shown(value)}: expected a value, or a tuple (value in training, value in "
                "evaluate and predict)."
            )
        return value[0], value[1]
    return value, value
