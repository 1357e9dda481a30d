"""A model on one process, whichever of MXNet's two interfaces it was written in: Gluon or Symbol/Module."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np

from orca.backends.mxnet.symbols import Graph
from orca.backends.mxnet.tensors import to_mxnet, to_numpy
from orca.errors import ArgumentError, DataError

_EXECUTORS = 8


class Weight(NamedTuple):
    """One array that is learned, its gradient, and what MXNet's optimizers know of it."""

    name: str
    value: Any
    gradient: Any
    parameter: Any = None


class Seen(NamedTuple):
    """What a step has shown: its loss, to be read later, and its outputs."""

    loss: Any
    outputs: Any

    def loss_sum(self) -> float | None:
        """The loss summed over the rows; waits until it is computed."""
        if self.loss is None or isinstance(self.loss, float):
            return self.loss
        return float(self.loss.asscalar())

    def arrays(self) -> Any:
        return to_numpy(self.outputs)


class Net(ABC):
    """A model with its loss: it learns from rows, scores them and runs over them."""

    dtype: Any = np.float32
    model: Any = None
    """MXNet's own object."""
    has_loss: bool = False

    @abstractmethod
    def ready(self) -> bool:
        """Whether all parameters have their shapes."""

    @abstractmethod
    def shape(self, features: Any) -> None:
        """Give all parameters their shapes, and first values, by a look at some rows."""

    @abstractmethod
    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, wanted: bool) -> Seen:
        """Compute the gradient of the rows' summed loss, times `scale`."""

    @abstractmethod
    def score(self, features: Any, labels: Any, weights: Any, rows: int) -> Seen:
        """Compute loss and outputs without learning."""

    @abstractmethod
    def run(self, features: Any) -> Any:
        """The outputs for rows, as arrays."""

    @abstractmethod
    def weights(self) -> list[Weight]:
        """What is learned, in an order that is the same on every rank."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """All parameters and running statistics by name, as arrays."""

    @abstractmethod
    def load(self, values: dict[str, Any]) -> None:
        """Take over such values."""

    @abstractmethod
    def statistics(self) -> list[Any]:
        """What training changes besides the weights, such as running means."""

    def optimizer_params(self) -> dict[str, Any]:
        """Arguments of an optimizer that come from the model."""
        return {}

    def check_names(self, given: dict[str, Any], own: dict[str, Any]) -> None:
        missing, unknown = sorted(set(own) - set(given)), sorted(set(given) - set(own))
        if missing or unknown:
            told = [f"{word} {', '.join(names[:5])}" for word, names in (("lacks", missing), ("has", unknown)) if names]
            raise ArgumentError(f"The weights are those of another model: what was saved {' and '.join(told)}.")


class GluonNet(Net):
    """A gluon Block, hybridized or not, and a loss that gives a value for each row."""

    def __init__(self, block: Any, loss: Any, init: Any) -> None:
        self.model = block
        self._loss = loss
        self.has_loss = loss is not None
        fresh = [p for p in block.collect_params().values() if p._data is None and not p._deferred_init]
        if fresh:
            block.initialize(init or mx.init.Uniform())
        own = self._parameters()
        sparse = next((name for name, p in own.items() if p._grad_stype != "default"), None)
        if sparse is not None:
            raise ArgumentError(
                f"{sparse} has sparse gradients, which cannot be put together here: use sparse_grad=False."
            )
        self.dtype = next((np.dtype(p.dtype) for p in own.values() if np.dtype(p.dtype).kind == "f"), np.dtype("f4"))
        self._order = _argument_names(block)
        self._learned: list[Weight] = []

    def _parameters(self) -> dict[str, Any]:
        return dict(self.model._collect_params_with_prefix())

    def ready(self) -> bool:
        return all(parameter._data is not None for parameter in self._parameters().values())

    def shape(self, features: Any) -> None:
        self.run(features)

    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, wanted: bool) -> Seen:
        with mx.autograd.record():
            outputs = self._call(features)
            loss = self._losses(outputs, labels, weights)
        # A loss of one number is taken for the mean over the rows.
        head = scale * rows if loss.size == 1 and rows > 1 else scale
        mx.autograd.backward([loss], [mx.nd.full(loss.shape, head, dtype=loss.dtype)])
        self._clear_stale()
        return Seen(_summed(loss, rows), outputs if wanted else None)

    def _clear_stale(self) -> None:
        """Weights that this forward pass left out still have the gradient of a step before."""
        if not self._learned:
            self._learned = self.weights()
        for _, value, gradient, _ in self._learned:
            if value._fresh_grad:
                value._fresh_grad = False
            else:
                gradient[:] = 0

    def score(self, features: Any, labels: Any, weights: Any, rows: int) -> Seen:
        outputs = self._call(features)
        loss = None if self._loss is None else _summed(self._losses(outputs, labels, weights), rows)
        return Seen(loss, outputs)

    def run(self, features: Any) -> Any:
        return to_numpy(self._call(features))

    def _losses(self, outputs: Any, labels: Any, weights: Any) -> Any:
        targets = [to_mxnet(label, self.dtype) for label in labels]
        target = targets[0] if len(targets) == 1 else targets
        told = (outputs, target) if weights is None else (outputs, target, self._weights(weights, outputs))
        return self._loss(*told)

    def _weights(self, weights: Any, outputs: Any) -> Any:
        first = outputs[0] if isinstance(outputs, list | tuple) else outputs
        made = to_mxnet(np.asarray(weights).reshape(-1), self.dtype)
        return made.reshape((-1,) + (1,) * (first.ndim - 1))

    def _call(self, features: Any) -> Any:
        return self.model(*(to_mxnet(array, self.dtype) for array in self.arguments(features)))

    def arguments(self, features: Any) -> list[Any]:
        """The features in the order of the block's own arguments."""
        if isinstance(features, dict):
            known = [name for name in self._order if name in features]
            features = [features[name] for name in (known if len(known) == len(features) else features)]
        return list(features) if isinstance(features, list | tuple) else [features]

    def weights(self) -> list[Weight]:
        found: OrderedDict[int, Weight] = OrderedDict()
        for name, parameter in self._parameters().items():
            if parameter.grad_req != "null" and id(parameter) not in found:
                if parameter.grad_req != "write":
                    raise ArgumentError(
                        f'{name} has grad_req={parameter.grad_req!r}; only "write" and "null" are known here.'
                    )
                found[id(parameter)] = Weight(name, parameter.data(), parameter.grad(), parameter)
        return list(found.values())

    def values(self) -> dict[str, Any]:
        return {name: parameter.data().asnumpy() for name, parameter in self._parameters().items()}

    def load(self, values: dict[str, Any]) -> None:
        own = self._parameters()
        self.check_names(values, own)
        for name, value in values.items():
            own[name].set_data(mx.nd.array(value, dtype=own[name].dtype))
            if own[name]._deferred_init:
                # Its shape is known now; a model that was never called has values all the same.
                own[name]._finish_deferred_init()

    def statistics(self) -> list[Any]:
        return [p.data() for p in self._parameters().values() if p.grad_req == "null"]


class SymbolNet(Net):
    """A Symbol whose last layers bring the loss, run by executors, one for each size of a batch."""

    has_loss = True

    def __init__(self, graph: Graph, init: Any) -> None:
        self.model = self._graph = graph
        self._init = init or mx.init.Uniform(0.01)
        self._averages = graph.averages()
        self._names = graph.parameters
        self._values: dict[str, Any] = dict(graph.values)
        self._gradients: dict[str, Any] = {}
        self._executors: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def ready(self) -> bool:
        return bool(self._gradients)

    def shape(self, features: Any) -> None:
        self.run(features)

    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, wanted: bool) -> Seen:
        self._refuse(weights)
        executor, told = self._executor(features, labels)
        outputs = executor.forward(is_train=True, **told)
        executor.backward()
        if self._averages:
            scale *= rows
        for gradient in self._gradients.values():
            gradient *= scale
        arrays = [output.asnumpy() for output in outputs]
        return Seen(self._graph.loss(arrays, labels), arrays)

    def score(self, features: Any, labels: Any, weights: Any, rows: int) -> Seen:
        self._refuse(weights)
        executor, told = self._executor(features, labels)
        arrays = [output.asnumpy() for output in executor.forward(is_train=False, **told)]
        return Seen(self._graph.loss(arrays, labels), arrays)

    def run(self, features: Any) -> Any:
        executor, told = self._executor(features, None)
        return to_numpy(executor.forward(is_train=False, **told))

    @staticmethod
    def _refuse(weights: Any) -> None:
        if weights is not None:
            raise DataError("Rows of a Symbol cannot be weighted: it brings its own loss. Use a Gluon model for that.")

    def inputs(self, features: Any) -> dict[str, Any]:
        names = self._graph.inputs
        if isinstance(features, dict):
            if set(features) != set(names):
                raise DataError(
                    f"The model's inputs are {', '.join(names)}; the data has {', '.join(map(str, features))}."
                )
            return features
        given = list(features) if isinstance(features, list | tuple) else [features]
        if len(given) != len(names):
            raise DataError(f"The model's inputs are {', '.join(names)}; the data has {len(given)}.")
        return dict(zip(names, given, strict=True))

    def _executor(self, features: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
        given = {name: np.asarray(array) for name, array in self.inputs(features).items()}
        if labels is not None:
            if len(labels) != len(self._graph.labels):
                raise DataError(f"The model's labels are {', '.join(self._graph.labels)}; the data has {len(labels)}.")
            given |= {name: np.asarray(array) for name, array in zip(self._graph.labels, labels, strict=True)}
        key = tuple(sorted((name, array.shape) for name, array in given.items()))
        found = self._executors.pop(key, None) or self._bind({name: array.shape for name, array in given.items()})
        self._executors[key] = found
        while len(self._executors) > _EXECUTORS:
            self._executors.popitem(last=False)
        return found, {name: to_mxnet(array, np.float32) for name, array in given.items()}

    def _bind(self, shapes: dict[str, Any]) -> Any:
        symbol = self._graph.symbol
        try:
            known, _, running = symbol.infer_shape(**shapes)
        except mx.base.MXNetError as error:
            raise DataError(f"The model does not take such rows: {str(error).splitlines()[0]}.") from None
        sizes = dict(zip(symbol.list_arguments(), known, strict=True))
        self._make(symbol, sizes, dict(zip(symbol.list_auxiliary_states(), running, strict=True)))
        arrays = {name: self._values[name] if name in self._values else mx.nd.zeros(sizes[name]) for name in sizes}
        request = {name: "write" if name in self._gradients else "null" for name in sizes}
        states = {name: self._values[name] for name in symbol.list_auxiliary_states()}
        return symbol.bind(mx.cpu(), arrays, self._gradients, request, states)

    def _make(self, symbol: Any, sizes: dict[str, Any], running: dict[str, Any]) -> None:
        """Make the parameters, once their shapes are known."""
        attributes = symbol.attr_dict()
        for name, size in {**{name: sizes[name] for name in self._names}, **running}.items():
            if name not in self._values:
                made = mx.nd.zeros(size)
                self._init(mx.init.InitDesc(name, attributes.get(name)), made)
                self._values[name] = made
        for name in self._names:
            if name not in self._gradients:
                self._gradients[name] = mx.nd.zeros(self._values[name].shape)

    def weights(self) -> list[Weight]:
        return [Weight(name, self._values[name], self._gradients[name]) for name in self._names]

    def values(self) -> dict[str, Any]:
        return {name: value.asnumpy() for name, value in self._values.items()}

    def load(self, values: dict[str, Any]) -> None:
        self.check_names(values, dict.fromkeys([*self._names, *self._graph.symbol.list_auxiliary_states()]))
        for name, value in values.items():
            if name in self._values:
                self._values[name][:] = mx.nd.array(value)
            else:
                self._values[name] = mx.nd.array(value)

    def statistics(self) -> list[Any]:
        return [self._values[name] for name in self._graph.symbol.list_auxiliary_states()]

    def optimizer_params(self) -> dict[str, Any]:
        # As Module does: multipliers of the symbol's attributes, no weight decay of biases.
        return {"sym": self._graph.symbol, "param_idx2name": dict(enumerate(self._names))}


def _summed(loss: Any, rows: int) -> Any:
    """The sum over the rows of each one's mean."""
    return loss.mean() * rows


def _argument_names(block: Any) -> list[str]:
    function = block.hybrid_forward if isinstance(block, mx.gluon.HybridBlock) else block.forward
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    return names[1:] if isinstance(block, mx.gluon.HybridBlock) else names
