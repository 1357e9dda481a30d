"""The parameter server in step: every rank owns a slice of all weights and is the only one that updates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from orca.backends.keras.reducers import Collective
from orca.backends.keras.replica import KerasReplica
from orca.errors import ArgumentError

_WHOLE = ("Lamb", "Adafactor", "Muon", "LossScaleOptimizer")


def check_optimizer(optimizer: Any) -> None:
    """Raise if the optimizer looks at more than one number of a weight at a time."""
    name = type(optimizer).__name__
    problem = None
    if name in _WHOLE:
        problem = f"{name} looks at whole weights"
    elif optimizer.clipnorm:
        problem = "clipnorm= looks at whole weights (global_clipnorm= is fine)"
    elif optimizer.use_ema:
        problem = "use_ema= keeps averages of whole weights"
    elif getattr(optimizer, "_exclude_from_weight_decay_keywords", None):
        problem = "exclude_from_weight_decay looks at whole weights"
    if problem is not None:
        raise ArgumentError(
            f'backend="parameter_server" updates slices: {problem}. Use backend="multiworker" or "horovod".'
        )


class Slice:
    """This rank's part of the weights, and an optimizer for nothing else."""

    def __init__(self, outer: Any, variables: Sequence[Any], reducer: Collective, rank: int) -> None:
        self.outer = outer
        self.variables = list(variables)
        self._reducer = reducer
        self._sizes = [int(np.prod(variable.shape)) for variable in self.variables]
        kinds = {str(variable.dtype) for variable in self.variables}
        if len(kinds) > 1:
            raise ArgumentError(f'backend="parameter_server" needs weights of one type; the model has {sorted(kinds)}.')
        self._chunk = -(-sum(self._sizes) // reducer.world)
        self._padding = self._chunk * reducer.world - sum(self._sizes)
        self._start = self._chunk * rank
        self._limit = outer.global_clipnorm
        self.part = keras.Variable(np.zeros(self._chunk, kinds.pop()), name="slice")
        config = {**outer.get_config(), "global_clipnorm": None}
        self.inner = type(outer).from_config(config)
        self.inner.build([self.part])

    def apply(self, grads: Sequence[Any], place: str) -> None:
        """Use gradients, which are sums already: update the own slice and put all slices together."""
        outer, inner = self.outer, self.inner
        grads = [
            tf.zeros_like(variable.value) if grad is None else grad
            for variable, grad in zip(self.variables, grads, strict=True)
        ]
        if self._limit:
            grads, _ = tf.clip_by_global_norm(grads, self._limit)
        if not isinstance(getattr(outer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule):
            inner.learning_rate.assign(outer.learning_rate)
        self.part.assign(self._own(variable.value for variable in self.variables))
        inner.apply([self._own(grads)], [self.part])
        everything = self._reducer.gather(tf.convert_to_tensor(self.part.value), place)
        pieces = tf.split(everything[: sum(self._sizes)], self._sizes)
        for variable, piece in zip(self.variables, pieces, strict=True):
            variable.assign(tf.reshape(piece, variable.shape))
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        outer.iterations.assign_add(1)

    def _own(self, tensors: Any) -> tf.Tensor:
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        return tf.pad(flat, [[0, self._padding]])[self._start : self._start + self._chunk]

    def state(self) -> list[Any]:
        """The state of one optimizer over all weights, as every other backend has it; all ranks call together."""
        full = self._full()
        slots = iter(self._gathered())
        taken: dict[str, int] = {}
        kinds = [variable.name.removeprefix(f"{self.part.name}_") for variable in self._slots()]
        flats = dict(zip(kinds, slots, strict=True))
        found = []
        for variable in full.variables:
            kind = _kind(variable.name, kinds) if _is_slot(full, variable) else None
            if kind is None:
                found.append(np.array(self._scalar(variable.name)))
                continue
            index = taken.get(kind, 0)
            taken[kind] = index + 1
            low = sum(self._sizes[:index])
            found.append(flats[kind][low : low + self._sizes[index]].reshape(self.variables[index].shape))
        return found

    def load(self, told: list[Any]) -> None:
        """Take over such a state: this rank's slice of it."""
        full = self._full()
        kinds = [variable.name.removeprefix(f"{self.part.name}_") for variable in self._slots()]
        parts: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for variable, value in zip(full.variables, told, strict=True):
            kind = _kind(variable.name, kinds) if _is_slot(full, variable) else None
            if kind is not None:
                parts[kind].append(np.ravel(value))
            else:
                for owner in (self.inner, self.outer):
                    _named(owner, variable.name).assign(value)
        for kind, variable in zip(kinds, self._slots(), strict=True):
            flat = np.pad(np.concatenate(parts[kind]), (0, self._padding))
            variable.assign(flat[self._start : self._start + self._chunk])

    def _full(self) -> Any:
        full = type(self.outer).from_config(self.outer.get_config())
        full.build(self.variables)
        return full

    def _slots(self) -> list[Any]:
        return [variable for variable in self.inner.variables if _is_slot(self.inner, variable)]

    def _gathered(self) -> list[Any]:
        slots = self._slots()
        gather = tf.function(
            lambda parts: [self._reducer.gather(part, f"slot {number}") for number, part in enumerate(parts)]
        )
        return [np.array(flat) for flat in gather([tf.convert_to_tensor(slot) for slot in slots])]

    def _scalar(self, name: str) -> Any:
        owner = self.outer if name == "learning_rate" else self.inner
        return _named(owner, name)


class SlicedReplica(KerasReplica):
    """A replica whose optimizer is spread over the ranks."""

    def __init__(self, model: Any, reducer: Collective, rank: int) -> None:
        self._rank = rank
        self._slice: Slice | None = None
        check_optimizer(model.optimizer)
        super().__init__(model, reducer)

    def _arrange(self) -> None:
        assert isinstance(self._reducer, Collective)
        self._slice = Slice(self._model.optimizer, self._model.trainable_variables, self._reducer, self._rank)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.load_state(pending)

    def _hook(self, name: str, optimizer: Any) -> None:
        if name != "optimizer":
            super()._hook(name, optimizer)
            return

        def together(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            assert self._slice is not None
            place = f"{name} {self._applied}"
            self._applied += 1
            self._slice.apply(self._shared(list(grads), place), place)

        optimizer.apply = together

    def _optimizer_state(self, name: str) -> list[Any]:
        return (
            self._slice.state() if name == "optimizer" and self._slice is not None else super()._optimizer_state(name)
        )

    def _load_optimizer(self, name: str, told: list[Any]) -> None:
        if name == "optimizer" and self._slice is not None:
            self._slice.load(told)
        else:
            super()._load_optimizer(name, told)


def _is_slot(optimizer: Any, variable: Any) -> bool:
    return variable.name not in ("iteration", "learning_rate") and len(variable.shape) > 0


def _kind(name: str, kinds: list[str]) -> str | None:
    return next((kind for kind in sorted(kinds, key=len, reverse=True) if name.endswith(f"_{kind}")), None)


def _named(optimizer: Any, name: str) -> Any:
    return next(variable for variable in optimizer.variables if variable.name == name)
