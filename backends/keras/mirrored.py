"""MirroredStrategy: one process whose devices each hold a copy of the model and compute a part of every step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.losses import loss as losses

from orca.backends.base import Outcome, State
from orca.backends.keras.replica import KerasReplica
from orca.backends.keras.sync import Reducer, scaled
from orca.shards.feed import Batch
from orca.shards.orders import share
from orca.shards.tree import row_count, take_rows

_KEYS = 1000
"""Group keys that one strategy may use."""


class Devices(Reducer):
    """Reduces over the devices of a strategy, from within the step of one device."""

    def __init__(self, world: int) -> None:
        self.world = world

    def sums(self, tensors: Sequence[Any], site: str, scale: Any = None) -> list[Any]:
        replica = tf.distribute.get_replica_context()
        return list(replica.all_reduce(tf.distribute.ReduceOp.SUM, list(scaled(tensors, scale))))


class MirroredReplica(KerasReplica):
    """A model mirrored on all devices of the strategy."""

    def __init__(self, make_model: Callable[[], Any], devices: int) -> None:
        kind = "GPU" if len(tf.config.list_logical_devices("GPU")) >= devices else "CPU"
        # Strategies with the same keys would reduce their tensors with those of the one before, of other shapes.
        tf.distribute.MirroredStrategy._collective_key_base += _KEYS
        self._strategy = tf.distribute.MirroredStrategy([f"/{kind}:{number}" for number in range(devices)])
        self._devices = devices
        self._prepared = False
        self._recorded: dict[str, Any] | None = None
        """The weights that optimizers are called with, while they are being recorded."""
        self._own = threading.local()
        """State of the step on one device: each device has a thread, and they alternate at every reduction."""
        with self._strategy.scope():
            super().__init__(make_model(), Devices(devices) if devices > 1 else None)
        self._reduce_once()

    def _arrange(self) -> None:
        super()._arrange()
        self._reduce_once()

    def _reduce_once(self) -> None:
        """Keep optimizers, including inner ones, from summing gradients that are already summed."""
        for optimizer in self._optimizers.values():
            for part in (optimizer, getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())):
                if part is not None:
                    part._all_reduce_sum_gradients = list

    def _hook(self, name: str, optimizer: Any) -> None:
        super()._hook(name, optimizer)
        apply = optimizer.apply

        def apply_or_record(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
            if self._recorded is None or trainable_variables is None:
                return apply(grads, trainable_variables)
            self._recorded[name] = list(trainable_variables)
            return None

        optimizer.apply = apply_or_record

    def _weight(self) -> Any:
        return self._own.weight

    def load_state(self, state: State) -> None:
        with self._strategy.scope():
            super().load_state(state)

    def settle(self) -> None:
        """Replace running statistics, which each device keeps separately, with their mean over the devices."""
        for variable in self._statistics():
            parts = self._strategy.experimental_local_results(variable.value)
            variable.assign(sum(np.asarray(part) for part in parts) / len(parts))

    def _build(self, features: Any) -> None:
        with self._strategy.scope():
            super()._build(features)

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        return self._run("train", batch.data, self._options.class_weight)

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        self._ready(data["x"])
        outcome = self._run("test", data)
        if not want_output:
            return outcome
        return Outcome(outcome.loss_sum, outcome.loss_count, data["y"], self.predict_step(data["x"]), outcome.extra)

    def _run(self, name: str, data: Any, class_weight: Any = None) -> Outcome:
        rows, devices = row_count(data), self._devices
        # With fewer rows than devices, all devices compute the same rows, which then count once.
        same = rows < devices
        cuts = [(0, rows)] * devices if same else [share(rows, device, devices) for device in range(devices)]
        parts = [self._data(take_rows(data, low, high), class_weight) for low, high in cuts]
        scales = [1 / devices if same else (high - low) / rows for low, high in cuts]
        if not self._prepared:
            # Metrics create their variables with the first data, which a strategy allows only outside its steps.
            self._prepared = True
            with self._strategy.scope():
                self._model._symbolic_build(data_batch=parts[0])
        sums = self._sums() if same and devices > 1 else None
        arguments = self._values(parts), self._values([tf.constant(scale, tf.float32) for scale in scales])
        step = self._function(name)
        if name == "train" and not all(optimizer.built for optimizer in self._optimizers.values()):
            self._build_optimizers(step, arguments)
        logs = step(*arguments)
        if sums is not None:
            assert self.own_metrics is not None
            before = self._before
            now = self._sums()
            self.own_metrics.load([old + (new - old) / devices for old, new in zip(sums, now, strict=True)])
            self._before = before
        results = self._strategy.experimental_local_results(logs)
        sizes = [1 if same else high - low for low, high in cuts]
        means = {
            key: sum(float(part[key]) * size for part, size in zip(results, sizes, strict=True)) / sum(sizes)
            for key in results[0]
            if np.ndim(results[0][key]) == 0
        }
        return self._outcome(means, self._loss_so_far(), rows)

    def _build_optimizers(self, step: Any, arguments: Any) -> None:
        """Create the slots of optimizers that would do so in their first step, where a strategy forbids it."""
        if not isinstance(step, tf.types.experimental.PolymorphicFunction):
            return
        recorded: dict[str, Any] = {}
        self._recorded = recorded
        try:
            tf.function(step.python_function, autograph=False).get_concrete_function(*arguments)
        finally:
            self._recorded = None
        with self._strategy.scope():
            for name, variables in recorded.items():
                if not self._optimizers[name].built:
                    self._optimizers[name].build(variables)
        self._reduce_once()

    def _values(self, values: list[Any]) -> Any:
        distribute = self._strategy.experimental_distribute_values_from_function
        return distribute(lambda context: values[context.replica_id_in_sync_group])

    def _make(self, name: str) -> Callable[..., Any]:
        if name == "predict":
            return super()._make(name)
        model, strategy = self._model, self._strategy

        def step(data: Any, scale: Any) -> Any:
            self._own.weight, self._applied = scale, 0
            return model.train_step(data) if name == "train" else model.test_step(data)

        def run(data: Any, scale: Any) -> Any:
            with _plain_means():
                return strategy.run(step, args=(data, scale))

        return run if getattr(model, "run_eagerly", False) else tf.function(run, autograph=False, reduce_retracing=True)


@contextmanager
def _plain_means() -> Iterator[None]:
    """Keep Keras from dividing losses by the number of devices, which it does for its own but not for a user's."""
    originals = losses.scale_loss_for_distribution, losses.unscale_loss_for_distribution
    losses.scale_loss_for_distribution = losses.unscale_loss_for_distribution = lambda value: value
    try:
        yield
    finally:
        losses.scale_loss_for_distribution, losses.unscale_loss_for_distribution = originals
