"""The synchronous parameter server: each rank owns a slice of all weights, which only that rank updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from orca.backends.base import State
from orca.backends.keras.engine import engine
from orca.backends.keras.reducers import MeshReducer
from orca.backends.keras.replica import KerasReplica
from orca.backends.keras.state import load_optimizers, optimizer_state
from orca.errors import ArgumentError, DataError

_NOT_ELEMENTWISE = ("Lamb", "Adafactor", "Muon", "LossScaleOptimizer", "MultiOptimizer")


def check_optimizer(optimizer: Any) -> None:
    """Raise if the optimizer does not update elementwise."""
    name = type(optimizer).__name__
    problem = None
    if name in _NOT_ELEMENTWISE:
        problem = f"{name} needs whole weights"
    elif optimizer.clipnorm:
        problem = "clipnorm= needs whole weights (global_clipnorm= is supported)"
    elif optimizer.use_ema:
        problem = "use_ema= averages whole weights"
    elif any(getattr(optimizer, f"_exclude_from_weight_decay{part}", None) for part in ("", "_pattern")):
        problem = "exclude_from_weight_decay needs whole weights"
    if problem is not None:
        raise ArgumentError(
            f'backend="parameter_server" updates slices: {problem}. Use backend="multiworker" or "horovod".'
        )


class Slice:
    """This rank's slice of the weights, and an optimizer for this slice only."""

    def __init__(self, outer: Any, variables: Sequence[Any], reducer: MeshReducer, rank: int) -> None:
        self.outer = outer
        self.variables = list(variables)
        self._reducer = reducer
        self._sizes = [int(np.prod(variable.shape)) for variable in self.variables]
        self._ends = np.cumsum(self._sizes).tolist()
        dtypes = {str(variable.dtype) for variable in self.variables}
        if len(dtypes) > 1:
            raise ArgumentError(
                f'backend="parameter_server" needs weights of one dtype; the model has {sorted(dtypes)}.'
            )
        self._chunk = -(-sum(self._sizes) // reducer.world)
        self._padding = self._chunk * reducer.world - sum(self._sizes)
        self._start = self._chunk * rank
        self._limit = outer.global_clipnorm
        self.part = keras.Variable(np.zeros(self._chunk, dtypes.pop()), name="slice")
        config = {**outer.get_config(), "global_clipnorm": None}
        self.inner = type(outer).from_config(config)
        owners = _build(self.inner, [self.part])
        self._slots = [one for one, owner in zip(self.inner.variables, owners, strict=True) if owner is not None]
        self._rest = [one for one, owner in zip(self.inner.variables, owners, strict=True) if owner is None]
        self._layout = _build(self._fresh(), self.variables)
        if self._layout.count(None) != len(self._rest):
            raise ArgumentError(
                f'backend="parameter_server" cannot slice the state of {type(outer).__name__}, which is neither shared '
                'by all weights nor shaped like a weight. Use backend="multiworker" or "horovod".'
            )

    def apply(self, grads: Sequence[Any], variables: Sequence[Any] | None, site: str) -> None:
        """Apply gradients that are already reduced: update this rank's slice and gather all slices."""
        outer, inner = self.outer, self.inner
        ordered = self._in_order(grads, variables)
        present = [grad is not None for grad in ordered]
        values = [
            tf.zeros_like(variable.value) if grad is None else grad
            for variable, grad in zip(self.variables, ordered, strict=True)
        ]
        if self._limit:
            # The inner optimizer removes the loss scale.
            values, _ = tf.clip_by_global_norm(values, outer.scale_loss(self._limit))
        if not isinstance(getattr(outer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule):
            inner.learning_rate.assign(outer.learning_rate)
        self.part.assign(self._own(variable.value for variable in self.variables))
        parts = [self.part, *self._slots]
        before = [] if all(present) else [tf.identity(part.value) for part in parts]
        inner.apply([self._own(values)], [self.part])
        for part, old in zip(parts, before, strict=False):
            # As elsewhere in Keras, a weight without a gradient does not change, and neither do its slots.
            part.assign(tf.where(self._mask(present), part.value, old))
        everything = self._reducer.gather(tf.convert_to_tensor(self.part.value), site)
        pieces = tf.split(everything[: sum(self._sizes)], self._sizes)
        for variable, piece in zip(self.variables, pieces, strict=True):
            variable.assign(tf.reshape(piece, variable.shape))
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        outer._iterations.assign_add(1)

    def _in_order(self, grads: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Return one gradient per weight, None where the step has none."""
        by_weight = dict(zip(map(id, self.variables if variables is None else variables), grads, strict=True))
        ordered = [by_weight.pop(id(variable), None) for variable in self.variables]
        if by_weight:
            raise ArgumentError(
                'backend="parameter_server": optimizer.apply was called with weights that were not trainable when '
                'training began. Use backend="multiworker" or "horovod".'
            )
        return ordered

    def _mask(self, present: list[bool]) -> Any:
        flat = np.pad(np.repeat(present, self._sizes), (0, self._padding))
        return flat[self._start : self._start + self._chunk]

    def _own(self, tensors: Any) -> tf.Tensor:
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        return tf.pad(flat, [[0, self._padding]])[self._start : self._start + self._chunk]

    def state(self) -> list[Any]:
        """Return the state as of one optimizer over all weights, like other backends; called on all ranks together."""
        flats, values = self._gathered(), []
        rest = iter([self.outer._learning_rate if one is self.inner._learning_rate else one for one in self._rest])
        for owner in self._layout:
            if owner is None:
                values.append(engine.value_of(next(rest)))
                continue
            weight, slot = owner
            end = self._ends[weight]
            values.append(flats[slot][end - self._sizes[weight] : end].reshape(self.variables[weight].shape))
        return values

    def load(self, state: list[Any]) -> None:
        """Load this rank's slice of such a state."""
        if len(state) != len(self._layout):
            raise DataError("The optimizer's state does not fit this optimizer: was it saved with another one?")
        rest = [value for value, owner in zip(state, self._layout, strict=True) if owner is None]
        for variables in (self._rest, self.outer.variables):
            for variable, value in zip(variables, rest, strict=False):
                variable.assign(value)
        slots: list[list[Any]] = [[None] * len(self.variables) for _ in self._slots]
        for value, owner in zip(state, self._layout, strict=True):
            if owner is not None:
                slots[owner[1]][owner[0]] = np.ravel(value)
        for variable, values in zip(self._slots, slots, strict=True):
            flat = np.pad(np.concatenate(values), (0, self._padding))
            variable.assign(flat[self._start : self._start + self._chunk])

    def whole(self) -> Any:
        """Return an optimizer over all weights with the state of all slices; called on all ranks together."""
        full = self._fresh()
        full.build(self.variables)
        for variable, value in zip(full.variables, self.state(), strict=True):
            variable.assign(value)
        return full

    def _fresh(self) -> Any:
        return type(self.outer).from_config(self.outer.get_config())

    def _gathered(self) -> list[Any]:
        gather = tf.function(
            lambda parts: [self._reducer.gather(part, f"slot {number}") for number, part in enumerate(parts)]
        )
        return [np.array(flat) for flat in gather([tf.convert_to_tensor(slot) for slot in self._slots])]


class SlicedReplica(KerasReplica):
    """A replica whose optimizer is sliced over the ranks."""

    def __init__(self, model: Any, reducer: MeshReducer, rank: int) -> None:
        self._rank = rank
        self._slice: Slice | None = None
        self._loaded: list[Any] | None = None
        check_optimizer(model.optimizer)
        if model.optimizer.built:
            # A model that was sent here has slots for all weights, of which a rank keeps its slice.
            self._loaded = optimizer_state(model.optimizer)
            model.optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
        super().__init__(model, reducer)

    def _arrange(self) -> None:
        assert isinstance(self._reducer, MeshReducer)
        self._slice = Slice(self._model.optimizer, self._model.trainable_variables, self._reducer, self._rank)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._slice.load(loaded)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.load_state(pending)

    def _hook(self, name: str, optimizer: Any) -> None:
        if name != "optimizer":
            super()._hook(name, optimizer)
            return

        def reduce_and_apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            assert self._slice is not None
            site = f"{name} {self._applied}"
            self._applied += 1
            variables = None if trainable_variables is None else list(trainable_variables)
            self._slice.apply(self._reduced(list(grads), site, optimizer), variables, site)

        optimizer.apply = reduce_and_apply

    @contextmanager
    def whole_optimizer(self, restores: bool = False) -> Iterator[None]:
        if self._slice is None:
            yield
            return
        outer, full = self._model.optimizer, self._slice.whole()
        self._model.optimizer = full
        try:
            yield
        finally:
            self._model.optimizer = outer
        if restores:
            self._slice.load(optimizer_state(full))

    def _optimizer_state(self, name: str) -> list[Any]:
        return (
            self._slice.state() if name == "optimizer" and self._slice is not None else super()._optimizer_state(name)
        )

    def _load_optimizers(self, state: State) -> None:
        others = {name: optimizer for name, optimizer in self._optimizers.items() if name != "optimizer"}
        load_optimizers(others, state, self._model)
        saved = (state.get("optimizer") or {}).get("optimizer")
        if saved is not None and self._slice is not None:
            self._slice.load(saved)


def _build(optimizer: Any, variables: Sequence[Any]) -> list[tuple[int, int] | None]:
    """Build an optimizer and return, for each of its variables, the weight's index and the slot's index, or None."""
    indices = {id(variable): index for index, variable in enumerate(variables)}
    owners: dict[int, tuple[int, int]] = {}
    counts = [0] * len(variables)
    make = optimizer.add_variable_from_reference

    def make_and_record(reference_variable: Any, *arguments: Any, **more: Any) -> Any:
        slot, index = make(reference_variable, *arguments, **more), indices[id(reference_variable)]
        owners[id(slot)] = index, counts[index]
        counts[index] += 1
        return slot

    optimizer.add_variable_from_reference = make_and_record
    optimizer.build(list(variables))
    optimizer.add_variable_from_reference = make
    return [owners.get(id(variable)) for variable in optimizer.variables]
