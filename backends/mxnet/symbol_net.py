"""Symbol and Module models in one process."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import mxnet as mx
import numpy as np

from orca.backends.mxnet.nets import Net, StepResult, Weight
from orca.backends.mxnet.symbols import Graph
from orca.backends.mxnet.tensors import to_mxnet, to_numpy, too_large
from orca.errors import DataError
from orca.shards.checks import LabelRules, Rules

_EXECUTORS = 8


class SymbolNet(Net):
    """A Symbol whose last layers define the loss, run by one executor per batch size."""

    has_loss = True

    def __init__(self, graph: Graph, init: Any) -> None:
        self.model = self._graph = graph
        self._init = init or mx.init.Uniform(0.01)
        self._averages = graph.averages()
        self._names = graph.parameters
        self._trainable = graph.learned
        self._values: dict[str, Any] = dict(graph.values)
        self._gradients: dict[str, Any] = {}
        self._executors: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def label_rules(self) -> Rules:
        head, attributes = self._graph.heads()[0]
        if head not in ("SoftmaxOutput", "Softmax") or len(self._graph.labels) != 1:
            return {}
        ignores = attributes.get("use_ignore") in ("True", "1")
        ignored = int(float(attributes.get("ignore_label", -1))) if ignores else None
        return {"": LabelRules(head, classes=True, ignore=ignored)}

    def ready(self) -> bool:
        return bool(self._gradients)

    def shape(self, features: Any) -> None:
        self.run(features)

    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, want_output: bool) -> StepResult:
        self._refuse_weights(weights)
        executor, inputs = self._executor(features, labels, train=True)
        outputs = executor.forward(is_train=True, **inputs)
        self.check_classes(outputs)
        executor.backward()
        if self._averages:
            scale *= rows
        for gradient in self._gradients.values():
            gradient *= scale
        arrays = [output.asnumpy() for output in outputs]
        return StepResult(self._graph.loss(arrays, labels), arrays)

    def score(self, features: Any, labels: Any, weights: Any, rows: int) -> StepResult:
        self._refuse_weights(weights)
        executor, inputs = self._executor(features, labels)
        outputs = executor.forward(is_train=False, **inputs)
        self.check_classes(outputs)
        arrays = [output.asnumpy() for output in outputs]
        return StepResult(self._graph.loss(arrays, labels), arrays)

    def run(self, features: Any) -> Any:
        executor, inputs = self._executor(features, None)
        return to_numpy(executor.forward(is_train=False, **inputs))

    @staticmethod
    def _refuse_weights(weights: Any) -> None:
        if weights is not None:
            raise DataError(
                "Sample weights are not supported for a Symbol, which defines its own loss: use a Gluon model."
            )

    def inputs(self, features: Any) -> dict[str, Any]:
        names = self._graph.inputs
        if isinstance(features, dict):
            if set(features) != set(names):
                raise DataError(
                    f"The model's inputs are {', '.join(names)}; the data has {', '.join(map(str, features))}."
                )
            return features
        arrays = list(features) if isinstance(features, list | tuple) else [features]
        if len(arrays) != len(names):
            raise DataError(f"The model's inputs are {', '.join(names)}; the data has {len(arrays)}.")
        return dict(zip(names, arrays, strict=True))

    def columns(self, features: Any, labels: Any) -> dict[str, Any]:
        if labels and len(labels) != len(self._graph.labels):
            raise DataError(f"The model's labels are {', '.join(self._graph.labels)}; the data has {len(labels)}.")
        return {**self.inputs(features), **dict(zip(self._graph.labels, labels, strict=False))}

    def _executor(self, features: Any, labels: Any, train: bool = False) -> tuple[Any, dict[str, Any]]:
        arrays = {name: np.asarray(array) for name, array in self.columns(features, labels or ()).items()}
        # Executors accept only floats; in training `survey` has already checked all rows.
        large = self.integer_columns or (
            () if train else [name for name, array in arrays.items() if too_large(array, self.dtype)]
        )
        if large:
            raise self.too_large_error(large)
        key = tuple(sorted((name, array.shape) for name, array in arrays.items()))
        executor = self._executors.pop(key, None) or self._bind({name: array.shape for name, array in arrays.items()})
        self._executors[key] = executor
        while len(self._executors) > _EXECUTORS:
            self._executors.popitem(last=False)
        return executor, {name: to_mxnet(array, np.float32) for name, array in arrays.items()}

    def _bind(self, shapes: dict[str, Any]) -> Any:
        symbol = self._graph.symbol
        try:
            arguments, _, running = symbol.infer_shape(**shapes)
        except mx.base.MXNetError as error:
            raise DataError(f"The model does not accept these rows: {str(error).splitlines()[0]}.") from None
        sizes = dict(zip(symbol.list_arguments(), arguments, strict=True))
        self._create_parameters(symbol, sizes, dict(zip(symbol.list_auxiliary_states(), running, strict=True)))
        arrays = {name: self._values[name] if name in self._values else mx.nd.zeros(sizes[name]) for name in sizes}
        request = {name: "write" if name in self._gradients else "null" for name in sizes}
        states = {name: self._values[name] for name in symbol.list_auxiliary_states()}
        return symbol.bind(mx.cpu(), arrays, self._gradients, request, states)

    def _create_parameters(self, symbol: Any, sizes: dict[str, Any], running: dict[str, Any]) -> None:
        """Create the missing parameters, now that their shapes are known."""
        attributes = symbol.attr_dict()
        for name, size in {**{name: sizes[name] for name in self._names}, **running}.items():
            if name not in self._values:
                value = mx.nd.zeros(size)
                self._init(mx.init.InitDesc(name, attributes.get(name)), value)
                self._values[name] = value
        for name in self._trainable:
            if name not in self._gradients:
                self._gradients[name] = mx.nd.zeros(self._values[name].shape)

    def weights(self) -> list[Weight]:
        return [Weight(name, self._values[name], self._gradients[name]) for name in self._trainable]

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
        # Like Module: multipliers from the symbol's attributes, no weight decay of biases.
        return {"sym": self._graph.symbol, "param_idx2name": dict(enumerate(self._trainable))}
