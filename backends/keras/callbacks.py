"""Adapts Keras callbacks to Orca's runs: they are called on every rank, with the same results on all ranks."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

import keras
import numpy as np

from orca.callbacks import Callback, Run

_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
)
"""These write files, so they run on rank 0 only."""
_ORCA_RECORDS = ("epoch", "rows", "seconds", "rows_per_s", "lr")


def adapt(callback: object) -> Callback | None:
    """Wrap a Keras callback as an Orca callback; return None for other objects."""
    if not isinstance(callback, keras.callbacks.Callback):
        return None
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    # LambdaCallback stores its hooks on the instance.
    if not any(
        hook in vars(callback) or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for hook in hooks
    ):
        return KerasCallback(callback)
    return WriterOnBatches(callback) if isinstance(callback, _WRITERS) else KerasCallbackOnBatches(callback)


class KerasCallback(Callback):
    """One Keras callback."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self._restored: dict[str, Any] = {}
        """The callback's attributes from a checkpoint."""
        self._initial: dict[str, Any] = {}
        """The callback's attributes at the beginning of a run."""

    @property
    def monitor(self) -> str | None:
        """Name of the value that the callback monitors, if anything depends on it."""
        return getattr(self.callback, "monitor", None) if getattr(self.callback, "save_best_only", True) else None

    def _here(self, run: Run) -> bool:
        return run.rank == 0 or not isinstance(self.callback, _WRITERS)

    def _saves(self, unit: str) -> bool:
        """Whether the callback may save the model after each "epoch", or after a number of batches."""
        if not isinstance(self.callback, keras.callbacks.ModelCheckpoint | keras.callbacks.BackupAndRestore):
            return False
        return bool((self.callback.save_freq == "epoch") == (unit == "epoch"))

    def _after(self, run: Run) -> None:
        if getattr(run.model, "stop_training", False) and run.reason is None:
            run.stop(f"{type(self.callback).__name__} set model.stop_training")

    def before_run(self, run: Run) -> None:
        callback, model = self.callback, run.model
        model.stop_training = False
        if self._here(run) or isinstance(callback, keras.callbacks.BackupAndRestore):
            # Every rank reads the backup, so that all resume from it.
            callback.set_model(model)
            callback.set_params({"verbose": 0, "epochs": run.last_epoch, "steps": run.batches})
            model._initial_epoch = None
            restores = isinstance(callback, keras.callbacks.BackupAndRestore)
            with _whole(run, True) if restores else nullcontext():
                self._begin(run)
            if getattr(model, "_initial_epoch", None):
                run.own_epoch = int(model._initial_epoch)
        self._initial = _attributes(callback)
        # Not earlier, because on_train_begin resets most callbacks.
        vars(callback).update(self._restored)
        self._after(run)

    def _begin(self, run: Run) -> None:
        callback = self.callback
        if not run.resumed or not isinstance(callback, keras.callbacks.CSVLogger):
            callback.on_train_begin({})
            return
        append, callback.append = callback.append, True  # keep the lines of earlier epochs
        try:
            callback.on_train_begin({})
        finally:
            callback.append = append

    def after_run(self, run: Run) -> None:
        if self._here(run):
            self.callback.on_train_end(_logs(run))
        self.callback._model = None

    def before_epoch(self, run: Run) -> None:
        if self._here(run):
            self.callback.on_epoch_begin(run.epoch - 1, {})

    def after_epoch(self, run: Run) -> None:
        with _whole(run) if self._saves("epoch") else nullcontext():
            if self._here(run):
                logs = _logs(run)
                before = set(logs)
                self.callback.on_epoch_end(run.epoch - 1, logs)
                for name in set(logs) - before:
                    run.record[name] = float(logs[name])
        self._after(run)

    def state(self) -> dict[str, Any]:
        """Return the attributes that the run has changed; the rest are the user's settings, which may change."""
        if isinstance(self.callback, keras.callbacks.CSVLogger):
            return {}
        settings = _settings(type(self.callback))
        return {
            name: value
            for name, value in _attributes(self.callback).items()
            if name not in settings
            and (name in self._restored or name not in self._initial or not _same(value, self._initial[name]))
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._restored = state

    def bring_back(self, attributes: dict[str, Any]) -> None:
        vars(self.callback).update(vars(attributes["callback"]))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "callback": _without_model(self.callback), "_restored": {}, "_initial": {}}


class KerasCallbackOnBatches(KerasCallback):
    """A Keras callback with batch hooks."""

    def before_run(self, run: Run) -> None:
        super().before_run(run)
        self._batches = getattr(self.callback, "_batches_seen_since_last_saving", 0)

    def before_batch(self, run: Run) -> None:
        if self._here(run):
            self.callback.on_train_batch_begin(run.batch, {})

    def after_batch(self, run: Run) -> None:
        due = self._saves("batch") and self._due()
        with _whole(run) if due else nullcontext():
            if self._here(run):
                self.callback.on_train_batch_end(run.batch - 1, {} if run.loss is None else {"loss": run.loss})
        self._after(run)

    def _due(self) -> bool:
        """Whether rank 0 saves after this step, which the other ranks need to know as well."""
        self._batches += 1
        if self._batches < self.callback.save_freq:
            return False
        self._batches = 0
        return True


class WriterOnBatches(KerasCallbackOnBatches):
    """A Keras callback with batch hooks that only writes files."""

    acts_on_batches = False


def _whole(run: Run, restores: bool = False) -> AbstractContextManager[None]:
    return run.replica.whole_optimizer(restores)  # type: ignore[attr-defined, no-any-return]


def _logs(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.record.items() if name not in _ORCA_RECORDS}


def _without_model(callback: Any) -> Any:
    copy = object.__new__(type(callback))
    for name, value in vars(callback).items():
        if name != "_model" and not name.startswith("_writer") and not hasattr(value, "write"):
            copy.__dict__[name] = value
    copy.__dict__["_model"] = None
    return copy


def _settings(kind: type) -> set[str]:
    """Return the constructor arguments of Keras' own callbacks, some of which convert them while running."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("keras.") and "__init__" in vars(base)]
    return {name for base in own for name in inspect.signature(base).parameters}


def _attributes(callback: Any) -> dict[str, Any]:
    return {name: copy(value) for name, value in vars(callback).items() if _is_plain(value)}


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, list | tuple):
        return type(value) is type(other) and len(value) == len(other) and all(map(_same, value, other))
    return type(value) is type(other) and np.array_equal(value, other)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray)
