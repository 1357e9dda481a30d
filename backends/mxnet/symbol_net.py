"""A model on one process that was written as a Symbol or Module."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import mxnet as mx
import numpy as np

from orca.backends.mxnet.nets import Net, Seen, Weight
from orca.backends.mxnet.symbols import Graph
from orca.backends.mxnet.tensors import to_mxnet, to_numpy, too_large
from orca.errors import DataError

_EXECUTORS = 8


class SymbolNet(Net):
    """A Symbol whose last layers bring the loss, run by executors, one for each size of a batch."""

    has_loss = True

    def __init__(self, graph: Graph, init: Any) -> None:
        self.model = self._graph = graph
        self._init = init or mx.init.Uniform(0.01)
        self._averages = graph.averages()
        self._names = graph.parameters
        self._learned = graph.learned
        self._values: dict[str, Any] = dict(graph.values)
        self._gradients: dict[str, Any] = {}
        self._executors: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def ready(self) -> bool:
        return bool(self._gradients)

    def shape(self, features: Any) -> None:
        self.run(features)

    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, wanted: bool) -> Seen:
        self._refuse(weights)
        executor, told = self._executor(features, labels, train=True)
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

    def columns(self, features: Any, labels: Any) -> dict[str, Any]:
        if labels and len(labels) != len(self._graph.labels):
            raise DataError(f"The model's labels are {', '.join(self._graph.labels)}; the data has {len(labels)}.")
        return {**self.inputs(features), **dict(zip(self._graph.labels, labels, strict=False))}

    def _executor(self, features: Any, labels: Any, train: bool = False) -> tuple[Any, dict[str, Any]]:
        given = {name: np.asarray(array) for name, array in self.columns(features, labels or ()).items()}
        # Executors take floats alone; in training all rows were looked at before.
        large = self.whole or (() if train else [name for name in given if too_large(given[name], self.dtype)])
        if large:
            raise self.too_large(large)
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
        for name in self._learned:
            if name not in self._gradients:
                self._gradients[name] = mx.nd.zeros(self._values[name].shape)

    def weights(self) -> list[Weight]:
        return [Weight(name, self._values[name], self._gradients[name]) for name in self._learned]

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
        return [self._values[name] for name in (*self._graph.symbol.list_auxiliary_states(), *self._graph.fixed)]

    def optimizer_params(self) -> dict[str, Any]:
        # As Module does: multipliers of the symbol's attributes, no weight decay of biases.
        return {"sym": self._graph.symbol, "param_idx2name": dict(enumerate(self._learned))}
