"""A single Keras replica in this process: clipping, custom losses, slices of weights, running statistics."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from orca.backends.base import StepOptions
from orca.backends.keras.callbacks import adapt
from orca.backends.keras.engine import GraphFunction
from orca.backends.keras.packing import pack
from orca.backends.keras.reducers import MeshReducer
from orca.backends.keras.replica import KerasReplica
from orca.backends.keras.slices import SlicedReplica, check_optimizer
from orca.backends.keras.sync import Reducer
from orca.callbacks import Run
from orca.errors import ArgumentError
from orca.launch.mesh import Mesh
from orca.shards.feed import Batch
from tests.backends.test_keras import data, scaled
from tests.conformance.keras_models import model_creator, same_weights

NUMBERS = itertools.count(1)
"""Numbers of replicas, whose reductions must not be confused."""


def batch(x, y):
    return Batch({"x": x, "y": y}, len(x), len(x))


@pytest.mark.parametrize("optimizer", ["dynamic", "fixed"])
@pytest.mark.parametrize("limits", [{"clip_norm": 0.1}, {"clip_value": (-0.01, 0.01)}])
def test_clipping_applies_to_gradients_without_the_loss_scale(optimizer, limits):
    x, y = data(20)
    keras.utils.set_random_seed(3)
    model = scaled({}) if optimizer == "dynamic" else model_creator({})
    if optimizer == "fixed":
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9, loss_scale_factor=1024.0), "binary_crossentropy")
    replica = KerasReplica(model)
    replica.configure(StepOptions(**limits))
    keras.utils.set_random_seed(3)
    alone = model_creator({})
    own = {"global_clipnorm": 0.1} if "clip_norm" in limits else {"clipvalue": 0.01}
    alone.compile(keras.optimizers.SGD(0.5, momentum=0.9, **own), "binary_crossentropy", run_eagerly=True)
    for _ in range(2):
        replica.train_step(batch(x, y), False)
        alone.train_on_batch(x, y)
    same_weights(model, alone)


def test_a_clipped_overflow_still_skips_the_step():
    x, y = data(20)
    model = scaled({})
    model.optimizer.build(model.trainable_variables)
    model.optimizer.dynamic_scale.assign(3e38)
    before = model.get_weights()
    replica = KerasReplica(model)
    replica.configure(StepOptions(clip_value=(-0.01, 0.01)))
    replica.train_step(batch(x * 100, 1e4 * y), False)
    for mine, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, old)
    assert float(model.optimizer.dynamic_scale.numpy()) == pytest.approx(1.5e38)


class Scaled(keras.layers.Layer):
    """Has a scalar weight."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


def odd(optimizer, **more):
    layers = [keras.layers.Dense(4, activation="tanh"), Scaled(), keras.layers.Dense(1), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(optimizer, "mse", run_eagerly=True, **more)
    return model


def pair(make_optimizer):
    """Return the same model twice: as Keras trains it, and with its weights in one slice."""
    keras.utils.set_random_seed(0)
    alone = odd(make_optimizer())
    keras.utils.set_random_seed(0)
    return alone, SlicedReplica(odd(make_optimizer()), MeshReducer(Mesh(0, {}), next(NUMBERS)), 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Nadam(0.05, global_clipnorm=0.1, loss_scale_factor=64.0),
        lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, gradient_accumulation_steps=2),
    ],
)
def test_a_slice_updates_and_saves_like_keras(make):
    x, y = data(20)
    alone, replica = pair(make)
    for _ in range(4):
        alone.train_on_batch(x, y)
        replica.train_step(batch(x, y), False)
    same_weights(replica.inner_model, alone)
    slots = replica.state()["optimizer"]["optimizer"]
    for mine, theirs in zip(slots, alone.optimizer.variables, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-6, err_msg=theirs.name)
    _, other = pair(make)
    other.load_state(replica.state())
    for one in (replica, other):
        one.train_step(batch(x, y), False)
    same_weights(replica.inner_model, other.inner_model)


def test_gradients_in_any_order_update_their_weights_and_no_others():
    alone, replica = pair(lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1))
    for step, chosen in enumerate([[5, 0, 1, 2, 3, 4, 6], [3, 1], [6, 5, 4, 3, 2, 1, 0]]):
        for model in (alone, replica.inner_model):
            variables = [model.trainable_variables[number] for number in chosen]
            grads = [keras.ops.full(variable.shape, 0.1 * (step + number)) for number, variable in enumerate(variables)]
            model.optimizer.apply_gradients(zip(grads, variables, strict=True))
    same_weights(replica.inner_model, alone)
    with pytest.raises(ArgumentError, match="weights that were not trainable when training began"):
        replica.inner_model.optimizer.apply([keras.ops.ones(2)], [keras.Variable(np.ones(2, "f4"))])


def test_a_trained_model_keeps_its_slots_when_it_is_sliced():
    x, y = data(20)
    keras.utils.set_random_seed(0)
    alone = odd(keras.optimizers.Adam(0.05))
    alone.train_on_batch(x, y)
    replica = SlicedReplica(pack(alone).open(), MeshReducer(Mesh(0, {}), next(NUMBERS)), 0)
    assert len(replica.inner_optimizer.variables) == 2  # no slots besides those of the slice
    alone.train_on_batch(x, y)
    replica.train_step(batch(x, y), False)
    same_weights(replica.inner_model, alone)


def test_keras_files_contain_the_slots_of_all_slices(tmp_path):
    x, y = data(20)
    alone, replica = pair(lambda: keras.optimizers.Adam(0.05))
    path = str(tmp_path / "model.keras")
    checkpoint = adapt(keras.callbacks.ModelCheckpoint(path))
    backup = adapt(keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=2))
    run = Run(replica, 0, 1, {})
    for callback in (checkpoint, backup):
        callback.before_run(run)
        callback.before_epoch(run)
    for number in range(2):
        replica.train_step(batch(x, y), False)
        alone.train_on_batch(x, y)
        run.batch = number + 1
        for callback in (checkpoint, backup):
            callback.after_batch(run)
    checkpoint.after_epoch(run)
    saved = keras.models.load_model(path, custom_objects={"Scaled": Scaled})
    _, restored = pair(lambda: keras.optimizers.Adam(0.05))
    adapt(keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))).before_run(Run(restored, 0, 1, {}))
    for mine, theirs in zip(saved.optimizer.variables, alone.optimizer.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)
    restored.train_step(batch(x, y), False)
    alone.train_on_batch(x, y)
    same_weights(restored.inner_model, alone)


def test_an_optimizer_with_weight_decay_exclusions_is_rejected():
    for excluded in ({"var_names": ["bias"]}, {"var_list": [keras.Variable(np.ones(2, "f4"))]}):
        optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(**excluded)
        with pytest.raises(ArgumentError, match="exclude_from_weight_decay needs whole weights"):
            check_optimizer(optimizer)


class Twice(Reducer):
    """Reduces over two ranks with equal values."""

    world = 2

    def __init__(self):
        self.sent = []

    def sums(self, tensors, site, scale=None):
        self.sent += [tuple(value.shape) for value in tensors]
        return [2 * value for value in tensors]


def test_only_running_statistics_are_averaged_at_the_end_of_an_epoch():
    frozen = keras.layers.Dense(5)
    model = keras.Sequential([keras.Input((6,)), frozen, keras.layers.BatchNormalization()])
    frozen.trainable = False
    model.compile("sgd", "mse")
    reducer = Twice()
    replica = KerasReplica(model, reducer)
    replica.settle()
    assert reducer.sent == [(5,), (5,)]


def test_a_graph_function_follows_structure_dtype_and_shape_and_traces_once_for_each():
    tensor, traces = keras.ops.convert_to_tensor, []

    def step(data, scale):
        traces.append(1)
        # The parts by name, and those by position in the reverse order.
        first, second = (data["a"], data["b"]) if isinstance(data, dict) else (data[1], data[0])
        return {"value": (first - second) * keras.ops.cast(scale, first.dtype)}

    run = GraphFunction(step, compiled=False)
    for dtype, rows in [("f4", 4), ("f4", 4), ("i4", 4), ("f4", 3), ("f4", 4), ("f4", 2)] * 2:
        for kind in (dict, list, tuple):
            a, b = np.arange(rows, dtype=dtype), np.ones(rows, dtype)
            parts = {"b": tensor(b), "a": tensor(a)} if kind is dict else kind([tensor(b), tensor(a)])
            np.testing.assert_array_equal(run(parts, tensor(np.float32(2)))["value"], (a - b) * 2)
    # Of each structure: one graph for integers, one for the first number of rows, one for any number.
    assert len(traces) <= 9
