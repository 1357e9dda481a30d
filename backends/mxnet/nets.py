"""A model with its loss on one process: what all have in common, and those that are written with Gluon."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np

from orca.backends.mxnet.tensors import exact_up_to, to_mxnet, to_numpy, too_large
from orca.errors import ArgumentError, DataError


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
    whole: frozenset[str] = frozenset()
    """Columns of whole numbers that the model's type cannot hold, so that all their batches stay whole numbers."""

    @abstractmethod
    def columns(self, features: Any, labels: Any) -> dict[str, Any]:
        """The arrays of some rows, by names that a user knows."""

    def survey(self, features: Any, labels: Any) -> list[str]:
        """Which columns hold numbers that are too large for the model's type."""
        named = self.columns(features, labels or ()).items()
        return [name for name, array in named if too_large(np.asarray(array), self.dtype)]

    def too_large(self, names: Iterable[str]) -> DataError:
        """What to tell if the model does not take such columns."""
        kind, limit = np.dtype(self.dtype).name, exact_up_to(self.dtype)
        return DataError(
            f"{', '.join(sorted(names))} holds whole numbers above {limit}, which {kind} cannot hold, and the model "
            "does not take them as int64. Number them anew from 0, scale them, or give them as floats."
        )

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
        self._heads: tuple[Any, Any] = (None, None)
        self._kept_whole: set[str] = set()

    def columns(self, features: Any, labels: Any) -> dict[str, Any]:
        given = self.arguments(features)
        return dict(zip([*self._features(features), *_numbered("y", labels)], [*given, *labels], strict=True))

    def _parameters(self) -> dict[str, Any]:
        return dict(self.model._collect_params_with_prefix())

    def ready(self) -> bool:
        return all(parameter._data is not None for parameter in self._parameters().values())

    def shape(self, features: Any) -> None:
        self.run(features)

    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, wanted: bool) -> Seen:
        with self._explained():
            # Before training all rows were looked at.
            with mx.autograd.record():
                outputs = self._call(features, look=False)
                loss = self._losses(outputs, labels, weights, look=False)
            # A loss of one number is taken for the mean over the rows.
            head = scale * rows if loss.size == 1 and rows > 1 else scale
            mx.autograd.backward([loss], [self._head(loss, head)])
        self._clear_stale()
        return Seen(_summed(loss, rows), outputs if wanted else None)

    def _head(self, loss: Any, value: float) -> Any:
        """How much each loss counts, as an array; nearly all steps have the same."""
        key = loss.shape, value, loss.dtype
        if self._heads[0] != key:
            self._heads = key, mx.nd.full(loss.shape, value, dtype=loss.dtype)
        return self._heads[1]

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
        with self._explained():
            outputs = self._call(features)
            loss = None if self._loss is None else _summed(self._losses(outputs, labels, weights), rows)
        return Seen(loss, outputs)

    def run(self, features: Any) -> Any:
        with self._explained():
            return to_numpy(self._call(features))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say it in words if the model takes no whole numbers where there are some."""
        self._kept_whole.clear()
        try:
            yield
        except mx.base.MXNetError as error:
            if not self._kept_whole:
                raise
            raise self.too_large(self._kept_whole) from error

    def _given(self, name: str, array: Any, look: bool) -> Any:
        whole = name in self.whole or (look and too_large(np.asarray(array), self.dtype))
        if whole:
            self._kept_whole.add(name)
        return to_mxnet(array, self.dtype, whole)

    def _losses(self, outputs: Any, labels: Any, weights: Any, look: bool = True) -> Any:
        targets = [self._given(name, label, look) for name, label in zip(_numbered("y", labels), labels, strict=True)]
        target = targets[0] if len(targets) == 1 else targets
        told = (outputs, target) if weights is None else (outputs, target, self._weights(weights, outputs))
        return self._loss(*told)

    def _weights(self, weights: Any, outputs: Any) -> Any:
        first = outputs[0] if isinstance(outputs, list | tuple) else outputs
        made = to_mxnet(np.asarray(weights).reshape(-1), self.dtype)
        return made.reshape((-1,) + (1,) * (first.ndim - 1))

    def _call(self, features: Any, look: bool = True) -> Any:
        named = zip(self._features(features), self.arguments(features), strict=True)
        return self.model(*(self._given(name, array, look) for name, array in named))

    def arguments(self, features: Any) -> list[Any]:
        """The features in the order of the block's own arguments."""
        if isinstance(features, dict):
            return [features[name] for name in self._keys(features)]
        return list(features) if isinstance(features, list | tuple) else [features]

    def _features(self, features: Any) -> list[str]:
        """What the features are called, in the same order."""
        return self._keys(features) if isinstance(features, dict) else _numbered("x", self.arguments(features))

    def _keys(self, features: dict[str, Any]) -> list[str]:
        known = [name for name in self._order if name in features]
        return known if len(known) == len(features) else list(features)

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


def _numbered(name: str, arrays: Sequence[Any]) -> list[str]:
    return [name] if len(arrays) == 1 else [f"{name}.{number}" for number in range(len(arrays))]


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
