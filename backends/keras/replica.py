"""One compiled Keras model on one rank: its training, evaluation and prediction steps, and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
from keras import ops

from orca.backends.base import Outcome, Replica, State, StepOptions
from orca.backends.keras.checking import check_rows, class_error, label_rules
from orca.backends.keras.engine import engine
from orca.backends.keras.metrics import KerasMetrics
from orca.backends.keras.state import (
    load_optimizers,
    load_weights,
    named_weights,
    optimizer_state,
    optimizers_of,
    seed_states,
    weights_of,
)
from orca.backends.keras.sync import Reducer
from orca.errors import DataError
from orca.shards.checks import LargestClass, Rules
from orca.shards.feed import Batch
from orca.shards.tree import row_count, take_rows, tree_map


class KerasReplica(Replica):
    """Trains, scores and predicts with one model, using its ``train_step``, ``test_step`` and ``predict_step``."""

    gives_outputs = False  # the model keeps its own metrics

    def __init__(self, model: Any, reducer: Reducer | None = None, trains: bool = True) -> None:
        self._model = model
        self._reducer = reducer or Reducer()
        self._trains = trains and getattr(model, "compiled", False)
        self._options = StepOptions()
        self._scale: Any = None
        self._scales: dict[float, Any] = {}
        """The last step's scale as a tensor, because nearly all steps have the same scale."""
        self._applied = 0
        self._pending: State | None = None
        self._inputs: Any = None
        """Features without rows, for a model that has inferred its shapes from them."""
        self._optimizers = optimizers_of(model) if self._trains else {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._before = (0.0, 0.0)
        self._largest: Mapping[str, LargestClass] = {}
        for name, optimizer in self._optimizers.items():
            self._hook(name, optimizer)
        if self._trains:
            self.own_metrics = KerasMetrics(model, self._forget_loss)
        if model.built:
            self._arrange()

    @property
    def inner_model(self) -> Any:
        return self._model

    @property
    def inner_optimizer(self) -> Any:
        return getattr(self._model, "optimizer", None)

    # -- building

    def label_rules(self) -> Rules:
        return label_rules(self._model) if self._trains else {}

    def expect_classes(self, largest: Mapping[str, LargestClass]) -> None:
        self._largest = largest

    def survey(self, data: Any) -> Any:
        """Check rows, and return two of them for a model that infers its shapes from the data."""
        check_rows(self._model, data)
        if self._model.built or not isinstance(data, dict):
            return None
        return take_rows(data["x"], 0, 2)

    def agree(self, surveys: list[Any]) -> None:
        samples = [sample for share in surveys for sample in share if sample is not None]
        if not self._model.built and samples:
            self._build(max(samples, key=row_count))

    def _build(self, features: Any) -> None:
        self._inputs = tree_map(lambda array: np.asarray(array)[:0], features)
        build_on(self._model, features)
        self._arrange()

    def _arrange(self) -> None:
        """Create the optimizers' slots and load the pending state, once all weights exist."""
        for name, optimizer in self._optimizers.items():
            if not optimizer.built and name == "optimizer":
                optimizer.build(self._model.trainable_variables)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.load_state(pending)

    def _hook(self, name: str, optimizer: Any) -> None:
        """Make the optimizer reduce gradients over all ranks and clip them."""
        apply = optimizer.apply

        def reduce_and_apply(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
            site = f"{name} {self._applied}"
            self._applied += 1
            return apply(self._reduced(list(grads), site, optimizer), trainable_variables)

        optimizer.apply = reduce_and_apply

    def _reduced(self, grads: list[Any], site: str, optimizer: Any) -> list[Any]:
        present = [index for index, value in enumerate(grads) if value is not None]
        for index in present:
            # For a row that occurs twice in a sparse gradient, Keras' optimizers sum the squares of its parts. A dense
            # gradient gives the update as it is defined, with any number of ranks.
            grads[index] = engine.dense(grads[index])
        if self._reducer.world > 1:
            own = [grads[index] for index in present]
            for index, value in zip(present, self._reducer.sums(own, site, self._weight()), strict=True):
                grads[index] = value
        if self._options.clip_value is not None or self._options.clip_norm is not None:
            self._clip(grads, present, optimizer)
        return grads

    def _weight(self) -> Any:
        """Return this rank's share of the step's rows, within the step."""
        return self._scale

    def _clip(self, grads: list[Any], present: list[int], optimizer: Any) -> None:
        # If the loss is scaled against underflow, so are the gradients, and the limits must be too.
        scale = optimizer.scale_loss(1.0)
        low_high, limit = self._options.clip_value, self._options.clip_norm
        if low_high is not None:
            for index in present:
                value = grads[index]
                clipped = ops.clip(value, *(ops.cast(bound * scale, value.dtype) for bound in low_high))
                # The optimizer must see an overflow to skip the step.
                grads[index] = ops.where(ops.isfinite(value), clipped, value)
        if limit is not None:
            norm = ops.sqrt(sum(ops.sum(ops.square(ops.cast(grads[index], "float32"))) for index in present))
            factor = limit * scale / ops.maximum(norm, limit * scale)
            for index in present:
                grads[index] = grads[index] * ops.cast(factor, grads[index].dtype)

    # -- steps

    def configure(self, options: StepOptions) -> None:
        if (options.clip_norm, options.clip_value) != (self._options.clip_norm, self._options.clip_value):
            self._functions.pop("train", None)
        self._options = options

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._functions[name] = self._make(name)
        return self._functions[name]

    def _make(self, name: str) -> Callable[..., Any]:
        model = self._model
        if name == "predict":
            step: Callable[..., Any] = lambda data: model.predict_step((data,))  # noqa: E731
        elif name == "test":
            step = self._tracked(model.test_step)
        else:
            train = self._tracked(model.train_step)

            def step(data: Any, scale: Any) -> Any:
                self._scale, self._applied = scale, 0
                return train(data)

        if getattr(model, "run_eagerly", False):
            return step
        # XLA does not support the reductions over ranks, so it compiles only steps without them.
        compiled = bool(getattr(model, "jit_compile", False)) and (name != "train" or self._reducer.world == 1)
        return engine.function(step, compiled)

    def _tracked(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a step to also return the total and count of Keras' own mean loss."""
        tracker = self._model._loss_tracker

        def tracked(data: Any) -> Any:
            logs = step(data)
            return logs, ops.stack([tracker.total.value, tracker.count.value])

        return tracked

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        data = self._data(batch.data, self._options.class_weight)
        scale = 0.0 if batch.filler else batch.rows / batch.total
        saved = self._sums() if batch.filler else None
        if scale not in self._scales:
            self._scales = {scale: engine.tensor(np.float32(scale))}
        logs, loss = self._explained(self._function("train"), data, self._scales[scale])
        if saved is not None:
            # Filler rows only keep this rank in lockstep and must not count.
            assert self.own_metrics is not None
            self.own_metrics.load(saved)
            return Outcome(0.0, 0.0)
        return self._outcome(logs, loss, batch.rows)

    def _explained(self, function: Callable[..., Any], *data: Any) -> Any:
        try:
            return function(*data)
        except Exception as error:
            better = class_error(error, self._largest)
            if better is error:
                raise
            raise better from error

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        self._ready(data["x"])
        logs, loss = self._explained(self._function("test"), self._data(data))
        outcome = self._outcome(logs, loss, row_count(data["x"]))
        if not want_output:
            return outcome
        return Outcome(outcome.loss_sum, outcome.loss_count, data["y"], self.predict_step(data["x"]), outcome.extra)

    def predict_step(self, features: Any) -> Any:
        self._ready(features)
        outputs = self._function("predict")(tree_map(_tensor, features))
        return tree_map(lambda value: np.array(ops.convert_to_numpy(value)), _plain(outputs))

    def _ready(self, features: Any) -> None:
        if not self._model.built or self._pending is not None:
            self._build(take_rows(features, 0, 2))

    def _outcome(self, logs: Any, loss: Any, rows: int) -> Outcome:
        total, count = (float(value) for value in ops.convert_to_numpy(loss))
        last_total, last_count = self._before
        self._before = total, count
        logs = logs if isinstance(logs, dict) else {}
        if count > last_count or total != total:
            return Outcome(total - last_total, count - last_count, extra=self._extra(logs, rows))
        # A custom step need not update Keras' mean. It then returns the loss of these rows, unless the model has a
        # metric named "loss", which tracks the mean itself.
        assert isinstance(self.own_metrics, KerasMetrics)
        extra, own = self._extra(logs, rows), float(logs["loss"]) if "loss" in logs else None
        if own is None or self.own_metrics.keeps_loss:
            return Outcome(float("nan") if own != own else 0.0, 0.0, extra=extra)
        return Outcome(own * rows, rows, extra=extra)

    def _extra(self, logs: dict[str, Any], rows: int) -> dict[str, float]:
        """Return the values of a custom step that are not metrics of the model."""
        assert isinstance(self.own_metrics, KerasMetrics)
        metrics = self.own_metrics.names
        if logs.keys() <= metrics:
            return {}
        return {name: float(value) * rows for name, value in logs.items() if name not in metrics and _is_number(value)}

    def _forget_loss(self) -> None:
        self._before = self._loss_so_far()

    def _loss_so_far(self) -> tuple[float, float]:
        tracker = self._model._loss_tracker
        return float(engine.value_of(tracker.total)), float(engine.value_of(tracker.count))

    def _sums(self) -> list[Any]:
        assert self.own_metrics is not None
        return self.own_metrics.sums()

    def _data(self, data: Any, class_weight: Any = None) -> Any:
        if not isinstance(data, dict) or "y" not in data:
            raise DataError('Training and evaluation need labels: give {"x": …, "y": …}, (x, y) or fit(x, y).')
        weights = data.get("w")
        if class_weight is not None:
            by_class = _class_weights(data["y"], class_weight)
            weights = by_class if weights is None else np.asarray(weights, "f4").reshape(-1) * by_class
        if weights is not None:
            weights = engine.tensor(np.asarray(weights, "f4").reshape(-1))
        return tree_map(_tensor, data["x"]), tree_map(_tensor, data["y"]), weights

    # -- state

    def state(self) -> State:
        if not self._model.built:
            return self._pending or {}
        state: State = {"model": named_weights(self._model)}
        if self._inputs is not None:
            state["inputs"] = self._inputs
        if self._optimizers:
            state["optimizer"] = {name: self._optimizer_state(name) for name in self._optimizers}
            # Each of several optimizers has slots for only some weights.
            state["weights_of"] = {name: weights_of(one, self._model) for name, one in self._optimizers.items()}
        return state

    def _optimizer_state(self, name: str) -> list[Any]:
        return optimizer_state(self._optimizers[name])

    def whole_optimizer(self, restores: bool = False) -> AbstractContextManager[None]:
        """Give the model an optimizer with all slots within this context, for callers that save or restore the model.

        To be entered on all ranks together.
        """
        return nullcontext()

    def load_state(self, state: State) -> None:
        if not self._model.built:
            self._pending = state
            return
        load_weights(self._model, state["model"])
        self._load_optimizers(state)

    def _load_optimizers(self, state: State) -> None:
        load_optimizers(self._optimizers, state, self._model)

    def reseed(self, seed: int, epoch: int, rank: int) -> None:
        states = seed_states(self._model)
        numbers = np.random.SeedSequence([seed, epoch, rank]).generate_state(max(len(states), 1) + 1)
        engine.seed(int(numbers[-1]))
        for variable, number in zip(states, numbers, strict=False):
            variable.assign(np.array([number, 0], variable.dtype))

    def random_state(self) -> dict[str, Any]:
        return {"seeds": [engine.value_of(variable) for variable in seed_states(self._model)]}

    def load_random_state(self, state: dict[str, Any]) -> None:
        for variable, value in zip(seed_states(self._model), state["seeds"], strict=False):
            variable.assign(value)

    def any(self, flag: bool) -> bool | None:
        return self._reducer.total(float(flag)) > 0

    def settle(self) -> None:
        """Replace running statistics with their mean over the ranks."""
        if self._reducer.world == 1:
            return
        values = self._statistics()
        if values:
            if "settle" not in self._functions:
                self._functions["settle"] = engine.function(lambda parts: self._reducer.sums(parts, "settle"), False)
            sums = self._functions["settle"]([engine.tensor(value) for value in values])
            for variable, value in zip(values, sums, strict=True):
                variable.assign(value / self._reducer.world)

    def _statistics(self) -> list[Any]:
        """Return the weights that change without gradients, which frozen trainable weights do not."""
        trainable = {id(value) for layer in self._model._flatten_layers() for value in layer._trainable_variables}
        statistics = [value for value in self._model.non_trainable_weights if id(value) not in trainable]
        return [value for value in statistics if "float" in str(value.dtype)]

    def learning_rate(self) -> float | None:
        optimizer = self.inner_optimizer
        return None if optimizer is None else float(engine.value_of(optimizer.learning_rate))


def build_on(model: Any, features: Any) -> None:
    """Build a model by calling it on one row of zeros with the shapes of these features."""
    row = tree_map(lambda array: np.zeros((1, *np.shape(array)[1:]), np.asarray(array).dtype), features)
    model(tree_map(_tensor, row), training=False)


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0


def _tensor(array: Any) -> Any:
    array = np.asarray(array)
    if array.dtype.kind == "f" and array.dtype.name != keras.config.floatx():
        array = array.astype(keras.config.floatx())
    elif array.dtype.kind == "O":
        array = array.astype(str)
    return engine.tensor(array)


def _plain(outputs: Any) -> Any:
    """Convert outputs to plain dicts and lists."""
    if isinstance(outputs, dict):
        return {str(name): _plain(value) for name, value in outputs.items()}
    if isinstance(outputs, list | tuple):
        return [_plain(value) for value in outputs]
    return outputs


def _class_weights(labels: Any, weights: Any) -> np.ndarray[Any, Any]:
    if isinstance(labels, dict | list | tuple):
        raise DataError("class_weight= is for a model with one output.")
    labels = np.asarray(labels)
    classes = labels.argmax(-1) if labels.ndim > 1 and labels.shape[-1] > 1 else labels.reshape(-1)
    by_row = np.ones(len(classes), "f4")
    for label, weight in weights.items():
        by_row[classes == label] = weight
    return by_row
