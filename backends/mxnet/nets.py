"""Models with their loss in one process: the `Net` interface and its Gluon implementation."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np

from orca.backends.base import Inputs
from orca.backends.mxnet.tensors import exact_up_to, to_mxnet, to_numpy, too_large
from orca.errors import ArgumentError, DataError
from orca.shards.checks import LabelRules, LargestClass, Rules


class Weight(NamedTuple):
    """A trainable array, its gradient and its Gluon parameter, if any."""

    name: str
    value: Any
    gradient: Any
    parameter: Any = None


class StepResult(NamedTuple):
    """The loss of a step, read lazily, and its outputs."""

    loss: Any
    outputs: Any

    def loss_sum(self) -> float | None:
        """Return the loss summed over the rows; waits until it is computed."""
        if self.loss is None or isinstance(self.loss, float):
            return self.loss
        return float(self.loss.asscalar())

    def arrays(self) -> Any:
        return to_numpy(self.outputs)


class Net(ABC):
    """A model with its loss: computes gradients, scores rows and predicts."""

    dtype: Any = np.float32
    model: Any = None
    """MXNet's own object."""
    has_loss: bool = False
    integer_columns: frozenset[str] = frozenset()
    """Columns with integers that the model's dtype cannot represent; all their batches stay int64."""

    largest: LargestClass | None = None
    """The largest class of this rank's labels, to be compared with the model's output."""

    def label_rules(self) -> Rules:
        """Return what the loss accepts as labels."""
        return {}

    def check_classes(self, outputs: Any) -> None:
        """Raise if the labels have classes that the first output lacks; MXNet would take the last class for them."""
        if self.largest is not None:
            first = outputs[0] if isinstance(outputs, list | tuple) else outputs
            largest, self.largest = self.largest, None
            if first.ndim == 2:
                largest.check(first.shape[1])

    @abstractmethod
    def columns(self, features: Any, labels: Any) -> dict[str, Any]:
        """Return the arrays of these rows by the names that users see."""

    def survey(self, features: Any, labels: Any) -> list[str]:
        """Return the columns with integers that are too large for the model's dtype."""
        named = self.columns(features, labels or ()).items()
        return [name for name, array in named if too_large(np.asarray(array), self.dtype)]

    def too_large_error(self, names: Iterable[str]) -> DataError:
        """Describe columns whose integers the model does not accept."""
        kind, limit = np.dtype(self.dtype).name, exact_up_to(self.dtype)
        return DataError(
            f"{', '.join(sorted(names))} contains integers above {limit}, which {kind} cannot represent, and the model "
            "does not accept int64. Renumber them from 0, scale them, or convert them to floats."
        )

    @abstractmethod
    def ready(self) -> bool:
        """Return whether all parameters have shapes."""

    @abstractmethod
    def shape(self, features: Any) -> None:
        """Infer all parameter shapes from some rows, and initialize the values."""

    @abstractmethod
    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, want_output: bool) -> StepResult:
        """Compute the gradient of the summed loss of the rows, times `scale`."""

    @abstractmethod
    def score(self, features: Any, labels: Any, weights: Any, rows: int) -> StepResult:
        """Compute loss and outputs without gradients."""

    @abstractmethod
    def run(self, features: Any) -> Any:
        """Return the outputs for rows, as arrays."""

    @abstractmethod
    def weights(self) -> list[Weight]:
        """Return the trainable arrays, in the same order on every rank."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Return all parameters and running statistics by name, as arrays."""

    @abstractmethod
    def load(self, values: dict[str, Any]) -> None:
        """Load values that `values` returned."""

    @abstractmethod
    def statistics(self) -> list[Any]:
        """Return what is not trainable but has to be equal on all ranks, such as running means."""

    def optimizer_params(self) -> dict[str, Any]:
        """Return optimizer arguments that depend on the model."""
        return {}

    def check_names(self, values: dict[str, Any], own: dict[str, Any]) -> None:
        missing, unknown = sorted(set(own) - set(values)), sorted(set(values) - set(own))
        if missing or unknown:
            parts = [
                f"{word} {', '.join(names[:5])}" for word, names in (("lack", missing), ("have", unknown)) if names
            ]
            raise ArgumentError(f"The weights belong to another model: the saved ones {' and '.join(parts)}.")


class GluonNet(Net):
    """A Gluon Block, hybridized or not, and a loss that returns one value per row."""

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
                f"{sparse} has sparse gradients, which are not supported for MXNet: use sparse_grad=False."
            )
        self.dtype = next((np.dtype(p.dtype) for p in own.values() if np.dtype(p.dtype).kind == "f"), np.dtype("f4"))
        self._order = _argument_names(block)
        self._trainable: list[Weight] = []
        self._heads: tuple[Any, Any] = (None, None)
        self._passed_as_int64: set[str] = set()

    def label_rules(self) -> Rules:
        return label_rules(self._loss)

    def inputs(self) -> Inputs:
        """Return how many arrays the model takes."""
        return _inputs(self.model)

    def columns(self, features: Any, labels: Any) -> dict[str, Any]:
        names = [*self._feature_names(features), *_numbered("y", labels)]
        return dict(zip(names, [*self.arguments(features), *labels], strict=True))

    def _parameters(self) -> dict[str, Any]:
        return dict(self.model._collect_params_with_prefix())

    def ready(self) -> bool:
        return all(parameter._data is not None for parameter in self._parameters().values())

    def shape(self, features: Any) -> None:
        self.run(features)

    def learn(self, features: Any, labels: Any, weights: Any, rows: int, scale: float, want_output: bool) -> StepResult:
        with self._explained():
            # `survey` has checked all rows for large integers before training.
            with mx.autograd.record():
                outputs = self._call(features, check=False)
                loss = self._losses(outputs, labels, weights, check=False)
            # A scalar loss counts as the mean over the rows.
            head = scale * rows if loss.size == 1 and rows > 1 else scale
            mx.autograd.backward([loss], [self._head(loss, head)])
        self._clear_stale()
        return StepResult(_summed(loss, rows), outputs if want_output else None)

    def _head(self, loss: Any, value: float) -> Any:
        """Return the gradient of each loss value; cached, as it is the same in nearly all steps."""
        key = loss.shape, value, loss.dtype
        if self._heads[0] != key:
            self._heads = key, mx.nd.full(loss.shape, value, dtype=loss.dtype)
        return self._heads[1]

    def _clear_stale(self) -> None:
        """Zero the gradients of weights that this forward pass did not use; they are from an earlier step."""
        if not self._trainable:
            self._trainable = self.weights()
        for _, value, gradient, _ in self._trainable:
            if value._fresh_grad:
                value._fresh_grad = False
            else:
                gradient[:] = 0

    def score(self, features: Any, labels: Any, weights: Any, rows: int) -> StepResult:
        with self._explained():
            outputs = self._call(features)
            loss = None if self._loss is None else _summed(self._losses(outputs, labels, weights), rows)
        return StepResult(loss, outputs)

    def run(self, features: Any) -> Any:
        with self._explained():
            return to_numpy(self._call(features))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explain MXNet's error if the model does not accept columns passed as int64."""
        self._passed_as_int64.clear()
        try:
            yield
        except mx.base.MXNetError as error:
            if not self._passed_as_int64:
                raise
            raise self.too_large_error(self._passed_as_int64) from error

    def _to_mxnet(self, name: str, array: Any, check: bool) -> Any:
        as_int64 = name in self.integer_columns or (check and too_large(np.asarray(array), self.dtype))
        if as_int64:
            self._passed_as_int64.add(name)
        return to_mxnet(array, self.dtype, as_int64)

    def _losses(self, outputs: Any, labels: Any, weights: Any, check: bool = True) -> Any:
        self.check_classes(outputs)
        targets = [
            self._to_mxnet(name, label, check) for name, label in zip(_numbered("y", labels), labels, strict=True)
        ]
        target = targets[0] if len(targets) == 1 else targets
        arguments = (outputs, target) if weights is None else (outputs, target, self._weights(weights, outputs))
        return self._loss(*arguments)

    def _weights(self, weights: Any, outputs: Any) -> Any:
        first = outputs[0] if isinstance(outputs, list | tuple) else outputs
        array = to_mxnet(np.asarray(weights).reshape(-1), self.dtype)
        return array.reshape((-1,) + (1,) * (first.ndim - 1))

    def _call(self, features: Any, check: bool = True) -> Any:
        named = zip(self._feature_names(features), self.arguments(features), strict=True)
        return self.model(*(self._to_mxnet(name, array, check) for name, array in named))

    def arguments(self, features: Any) -> list[Any]:
        """Return the features in the order of the block's arguments."""
        if isinstance(features, dict):
            return [features[name] for name in self._keys(features)]
        return list(features) if isinstance(features, list | tuple) else [features]

    def _feature_names(self, features: Any) -> list[str]:
        """Return the names of the features, in the same order."""
        return self._keys(features) if isinstance(features, dict) else _numbered("x", self.arguments(features))

    def _keys(self, features: dict[str, Any]) -> list[str]:
        names = [name for name in self._order if name in features]
        return names if len(names) == len(features) else list(features)

    def weights(self) -> list[Weight]:
        weights: OrderedDict[int, Weight] = OrderedDict()
        for name, parameter in self._parameters().items():
            if parameter.grad_req != "null" and id(parameter) not in weights:
                if parameter.grad_req != "write":
                    raise ArgumentError(
                        f'{name} has grad_req={parameter.grad_req!r}; only "write" and "null" are supported.'
                    )
                weights[id(parameter)] = Weight(name, parameter.data(), parameter.grad(), parameter)
        return list(weights.values())

    def values(self) -> dict[str, Any]:
        return {name: parameter.data().asnumpy() for name, parameter in self._parameters().items()}

    def load(self, values: dict[str, Any]) -> None:
        own = self._parameters()
        self.check_names(values, own)
        for name, value in values.items():
            own[name].set_data(mx.nd.array(value, dtype=own[name].dtype))
            if own[name]._deferred_init:
                # The shape is known now, although the model was never called.
                own[name]._finish_deferred_init()

    def statistics(self) -> list[Any]:
        return [p.data() for p in self._parameters().values() if p.grad_req == "null"]


def label_rules(loss: Any) -> Rules:
    """Return what a Gluon loss accepts as labels."""
    name = type(loss).__name__
    if isinstance(loss, mx.gluon.loss.SoftmaxCrossEntropyLoss) and loss._sparse_label:
        return {"": LabelRules(name, classes=True)}
    if isinstance(loss, mx.gluon.loss.SigmoidBinaryCrossEntropyLoss):
        return {"": LabelRules(name, probabilities=True)}
    return {}


def _numbered(name: str, arrays: Sequence[Any]) -> list[str]:
    return [name] if len(arrays) == 1 else [f"{name}.{number}" for number in range(len(arrays))]


def _summed(loss: Any, rows: int) -> Any:
    """Return the sum over the rows of each row's mean loss."""
    return loss.mean() * rows


def _inputs(block: Any) -> Inputs:
    """Return how many arrays the block's forward takes."""
    is_hybrid = isinstance(block, mx.gluon.HybridBlock)
    try:
        parameters = list(inspect.signature(block.hybrid_forward if is_hybrid else block.forward).parameters.values())
    except (TypeError, ValueError):
        return Inputs()
    plain = [p for p in parameters[is_hybrid:] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    count = sum(p.default is p.empty for p in plain)
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return Inputs(count, most=2**31 if is_open else len(plain))


def _argument_names(block: Any) -> list[str]:
    function = block.hybrid_forward if isinstance(block, mx.gluon.HybridBlock) else block.forward
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    return names[1:] if isinstance(block, mx.gluon.HybridBlock) else names
