"""MirroredStrategy: one process whose devices each hold a copy of the model and take a part of every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from orca.backends.base import Outcome
from orca.backends.keras.replica import KerasReplica
from orca.backends.keras.sync import Reducer, scaled
from orca.shards.feed import Batch, share
from orca.shards.tree import row_count, take_rows


class Devices(Reducer):
    """The devices of a strategy, asked from inside the step of one of them."""

    def __init__(self, world: int) -> None:
        self.world = world

    def sums(self, tensors: Sequence[Any], place: str, scale: Any = None) -> list[Any]:
        replica = tf.distribute.get_replica_context()
        return list(replica.all_reduce(tf.distribute.ReduceOp.SUM, list(scaled(tensors, scale))))


class MirroredReplica(KerasReplica):
    """A model mirrored on all devices of the strategy."""

    def __init__(self, make_model: Callable[[], Any], devices: int) -> None:
        kind = "GPU" if len(tf.config.list_logical_devices("GPU")) >= devices else "CPU"
        self._strategy = tf.distribute.MirroredStrategy([f"/{kind}:{number}" for number in range(devices)])
        self._devices = devices
        self._prepared = False
        with self._strategy.scope():
            super().__init__(make_model(), Devices(devices) if devices > 1 else None)
        for optimizer in self._optimizers.values():
            # The gradients that reach it are sums already.
            optimizer._all_reduce_sum_gradients = list

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
        # With fewer rows than devices all of them compute the same rows, which then count once.
        same = rows < devices
        cuts = [(0, rows)] * devices if same else [share(rows, device, devices) for device in range(devices)]
        parts = [self._data(take_rows(data, low, high), class_weight) for low, high in cuts]
        # Keras divides a device's mean by their number; what is wanted is the mean over all rows.
        scales = [1.0 if same else (high - low) / rows * devices for low, high in cuts]
        if not self._prepared:
            # Metrics make their variables when they first see data, which a strategy allows only outside its steps.
            self._prepared = True
            with self._strategy.scope():
                self._model._symbolic_build(data_batch=parts[0])
        kept = self._sums() if same and devices > 1 else None
        logs = self._function(name)(self._values(parts), self._values([tf.constant(s, tf.float32) for s in scales]))
        if kept is not None:
            assert self.own_metrics is not None
            before = self._before
            now = self._sums()
            self.own_metrics.load([old + (new - old) / devices for old, new in zip(kept, now, strict=True)])
            self._before = before
        found = self._strategy.experimental_local_results(logs)
        sizes = [1 if same else high - low for low, high in cuts]
        shown = {
            key: sum(float(part[key]) * size for part, size in zip(found, sizes, strict=True)) / sum(sizes)
            for key in found[0]
            if np.ndim(found[0][key]) == 0
        }
        return self._outcome(shown, self._loss_so_far(), rows)

    def _values(self, values: list[Any]) -> Any:
        distribute = self._strategy.experimental_distribute_values_from_function
        return distribute(lambda context: values[context.replica_id_in_sync_group])

    def _make(self, name: str) -> Callable[..., Any]:
        if name == "predict":
            return super()._make(name)
        model, strategy = self._model, self._strategy

        def step(data: Any, scale: Any) -> Any:
            self._scale, self._applied = scale, 0
            return model.train_step(data) if name == "train" else model.test_step(data)

        def run(data: Any, scale: Any) -> Any:
            return strategy.run(step, args=(data, scale))

        return run if getattr(model, "run_eagerly", False) else tf.function(run, autograph=False, reduce_retracing=True)
