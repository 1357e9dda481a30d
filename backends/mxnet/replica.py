"""The MXNet replica of one rank: trains together with the others, scores and predicts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
import numpy as np

from orca.backends.base import Outcome, Replica, Seat, State, StepOptions
from orca.backends.mxnet.nets import Net
from orca.backends.mxnet.sync import Sync
from orca.errors import DataError
from orca.launch.base import Rank
from orca.shards.checks import LargestClass, Rules
from orca.shards.feed import Batch
from orca.shards.tree import row_count, take_rows, tree_map

Join = Callable[[], Sync]


class MXNetReplica(Replica):
    """A net, its optimizer and its synchronization, which `join` creates at the first training."""

    def __init__(self, net: Net, optimizer: Any, seed: int, join: Join | None = None, workers: int = 1) -> None:
        self._net = net
        self._optimizer = optimizer
        self._seed = seed
        self._join = join
        self._workers = workers
        self._sync: Sync | None = None
        self._attached = False
        self._optimizer_state: State | None = None
        self._options = StepOptions()
        self._stream: list[int] = []

    @property
    def inner_model(self) -> Any:
        return self._net.model

    @property
    def inner_optimizer(self) -> Any:
        return self._optimizer

    def seat(self, place: Rank) -> Seat:
        return Seat(place.rank, self._workers)

    def configure(self, options: StepOptions) -> None:
        self._options = options
        if self._sync is None:
            self._sync = self._join() if self._join is not None else Sync()

    def label_rules(self) -> Rules:
        return self._net.label_rules()

    def expect_classes(self, largest: Mapping[str, LargestClass]) -> None:
        self._net.largest = largest.get("")

    def survey(self, data: Any) -> Any:
        """Return the columns with large integers, and two rows from which a model without shapes can infer them."""
        features, labels = _parts(data)
        return self._net.survey(features, labels), None if self._net.ready() else take_rows(features, 0, 2)

    def agree(self, surveys: list[Any]) -> None:
        self._net.integer_columns = frozenset(name for share in surveys for names, _ in share for name in names)
        if self._attached:
            return
        if not self._net.ready():
            sample = next(rows for share in surveys for _, rows in share if rows is not None and row_count(rows))
            self._net.shape(tree_map(lambda leaf: np.zeros_like(leaf), sample))
        assert self._sync is not None
        self._sync.attach(self._net.weights(), self._optimizer, self._optimizer_state)
        # An initializer may ignore the seed: all ranks start from rank 0's values.
        self._sync.settle(self._net.statistics())
        self._attached = True

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        sync = self._sync
        assert sync is not None
        if batch.filler and not sync.keeps_step:
            return Outcome(0.0, 0.0)
        rows = 0 if batch.filler else batch.rows
        features, labels, weights = self._rows(batch.data, self._options)
        count, total = float(rows), float(batch.total if sync.keeps_step else rows)
        if weights is not None:
            count = float(weights.sum()) if rows else 0.0
            total = sync.total(count)
        scale = 1.0 / total if total else 0.0
        results = self._gradients(features, labels, weights, rows, scale, batch.least, want_output)
        sync.reduce()
        self._limit()
        sync.update()
        if not rows:
            return Outcome(0.0, 0.0)
        losses = [part.loss_sum() for part in results]
        loss_sum = sum(loss for loss in losses if loss is not None)
        count = count if losses[0] is not None else 0.0
        if not want_output:
            return Outcome(loss_sum, count)
        outputs = [part.arrays() for part in results]
        output = outputs[0] if len(outputs) == 1 else tree_map(lambda *parts: np.concatenate(parts), *outputs)
        return Outcome(loss_sum, count, _one(labels), output)

    def _gradients(
        self, features: Any, labels: Any, weights: Any, rows: int, scale: float, least: int, want_output: bool
    ) -> list[Any]:
        """Compute this rank's gradient of the step, in `accumulate` pieces."""
        if not rows:
            for weight in self._net.weights():
                weight.gradient[:] = 0
            return []
        count = max(1, min(self._options.accumulate, least))
        if count == 1:
            return [self._net.learn(features, labels, weights, rows, scale, want_output)]
        edges = [rows * number // count for number in range(count + 1)]
        sums: list[Any] = []
        results = []
        for low, high in itertools.pairwise(edges):
            x, y = take_rows(features, low, high), take_rows(labels, low, high)
            w = None if weights is None else weights[low:high]
            results.append(self._net.learn(x, y, w, high - low, scale, want_output))
            fresh = [weight.gradient for weight in self._net.weights()]
            sums = [a + b for a, b in zip(sums, fresh, strict=True)] if sums else [value.copy() for value in fresh]
        for weight, value in zip(self._net.weights(), sums, strict=True):
            weight.gradient[:] = value
        return results

    def _limit(self) -> None:
        options = self._options
        if options.on_gradients is not None:
            options.on_gradients()
        if options.clip_value is None and options.clip_norm is None:
            return
        gradients = [weight.gradient for weight in self._net.weights()]
        if options.clip_value is not None:
            for gradient in gradients:
                mx.nd.clip(gradient, *options.clip_value, out=gradient)
        if options.clip_norm is not None:
            norm = float(np.sqrt(sum(float((gradient**2).sum().asscalar()) for gradient in gradients)))
            if norm > options.clip_norm:
                for gradient in gradients:
                    gradient *= options.clip_norm / (norm + 1e-6)

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        features, labels, weights = self._rows(data, StepOptions())
        rows = row_count(features)
        result = self._net.score(features, labels, weights, rows)
        loss = result.loss_sum()
        count = 0.0 if loss is None else float(rows if weights is None else weights.sum())
        if not want_output:
            return Outcome(loss or 0.0, count)
        return Outcome(loss or 0.0, count, _one(labels), result.arrays())

    def predict_step(self, features: Any) -> Any:
        return self._net.run(features)

    def _rows(self, data: Any, options: StepOptions) -> tuple[Any, list[Any], Any]:
        features, labels = _parts(data)
        if labels is None:
            raise DataError('Training and evaluation need labels: pass {"x": …, "y": …}, (x, y) or fit(x, y).')
        weights = data.get("w")
        weights = None if weights is None else np.asarray(weights, np.float64).reshape(-1)
        if options.class_weight is not None:
            classes = np.asarray(labels[0]).reshape(-1).astype(np.int64)
            by_class = np.array([options.class_weight.get(int(number), 1.0) for number in classes])
            weights = by_class if weights is None else weights * by_class
        return features, labels, weights

    def state(self) -> State:
        state: State = {"model": self._net.values() if self._net.ready() else {}}
        if self._attached and self._sync is not None:
            state["optimizer"] = self._sync.optimizer_state()
        elif self._optimizer_state is not None:
            state["optimizer"] = self._optimizer_state
        return state

    def load_state(self, state: State) -> None:
        if state["model"]:
            self._net.load(state["model"])
        optimizer_state = state.get("optimizer")
        if self._attached and self._sync is not None:
            self._sync.reload(optimizer_state)
        self._optimizer_state = optimizer_state

    def reseed(self, seed: int, epoch: int, rank: int) -> None:
        self._stream = [seed, epoch, rank, 0]
        self._seed_stream()

    def random_state(self) -> dict[str, Any]:
        # MXNet cannot report the state of its generator: start a new stream here, and save its number.
        self._stream[-1] += 1
        self._seed_stream()
        return {"stream": list(self._stream)}

    def load_random_state(self, state: dict[str, Any]) -> None:
        self._stream = [int(number) for number in state["stream"]]
        self._seed_stream()

    def _seed_stream(self) -> None:
        mx.random.seed(int(np.random.SeedSequence(self._stream).generate_state(1)[0]) >> 1)

    def any(self, flag: bool) -> bool | None:
        assert self._sync is not None
        return bool(self._sync.total(float(flag)) > 0) if self._sync.keeps_step else None

    def settle(self) -> None:
        assert self._sync is not None
        self._sync.settle(self._net.statistics())

    def learning_rate(self) -> float | None:
        return float(self._optimizer.learning_rate)


class ServingReplica(Replica):
    """The replica of a server or the scheduler: no model and no data, but part of every collective call."""

    gives_outputs = True

    def __init__(self, join: Join, workers: int) -> None:
        self._join = join
        self._workers = workers
        self._sync: Sync | None = None
        self._attached = False
        self._state: State | None = None

    def seat(self, place: Rank) -> Seat:
        return Seat(None, self._workers)

    def configure(self, options: StepOptions) -> None:
        if self._sync is None:
            self._sync = self._join()

    def agree(self, surveys: list[Any]) -> None:
        assert self._sync is not None
        if not self._attached:
            self._sync.attach([], None, self._state)
            self._sync.settle(())
            self._attached = True

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        return Outcome(0.0, 0.0)

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        return Outcome(0.0, 0.0)

    def predict_step(self, features: Any) -> Any:
        raise RuntimeError("a server does not predict")

    def state(self) -> State:
        if self._attached and self._sync is not None:
            self._sync.optimizer_state()
        return {"model": {}}

    def load_state(self, state: State) -> None:
        self._state = state.get("optimizer")
        if self._attached and self._sync is not None:
            self._sync.reload(self._state)

    def settle(self) -> None:
        assert self._sync is not None
        self._sync.settle(())

    def learning_rate(self) -> float | None:
        return None


def _parts(data: Any) -> tuple[Any, list[Any] | None]:
    """Return the features and the list of labels."""
    if not isinstance(data, dict) or "x" not in data:
        return data, None
    labels = data.get("y")
    if labels is None:
        return data["x"], None
    if isinstance(labels, dict):
        return data["x"], list(labels.values())
    return data["x"], list(labels) if isinstance(labels, list | tuple) else [labels]


def _one(labels: list[Any]) -> Any:
    return labels[0] if len(labels) == 1 else tuple(labels)
