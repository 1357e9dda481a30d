"""Keras' callbacks inside Orca's runs: called on every rank with results that are the same on all of them."""

from __future__ import annotations

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
"""These write files: once is enough."""
_OURS = ("epoch", "rows", "seconds", "rows_per_s", "lr")


def adapt(callback: object) -> Callback | None:
    """A callback of Keras as one of ours, or None if it is none."""
    if not isinstance(callback, keras.callbacks.Callback):
        return None
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    batchwise = any(getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook) for hook in hooks)
    if not batchwise:
        return KerasCallback(callback)
    return WriterOnBatches(callback) if isinstance(callback, _WRITERS) else KerasCallbackOnBatches(callback)


class KerasCallback(Callback):
    """One callback of Keras."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    @property
    def monitor(self) -> str | None:
        """What the callback watches, if anything depends on it."""
        return getattr(self.callback, "monitor", None) if getattr(self.callback, "save_best_only", True) else None

    def _here(self, run: Run) -> bool:
        return run.rank == 0 or not isinstance(self.callback, _WRITERS)

    def _after(self, run: Run) -> None:
        if getattr(run.model, "stop_training", False):
            run.stop(f"{type(self.callback).__name__} set model.stop_training")

    def before_run(self, run: Run) -> None:
        callback, model = self.callback, run.model
        model.stop_training = False
        callback.set_model(model)
        callback.set_params({"verbose": 0, "epochs": run.last_epoch, "steps": run.batches})
        if self._here(run) or isinstance(callback, keras.callbacks.BackupAndRestore):
            # A backup is read by every rank, so that all go on from it.
            model._initial_epoch = None
            callback.on_train_begin({})
            if getattr(model, "_initial_epoch", None):
                run.own_epoch = int(model._initial_epoch)
        self._after(run)

    def after_run(self, run: Run) -> None:
        if self._here(run):
            self.callback.on_train_end(_logs(run))
        self.callback._model = None

    def before_epoch(self, run: Run) -> None:
        if self._here(run):
            self.callback.on_epoch_begin(run.epoch - 1, {})

    def after_epoch(self, run: Run) -> None:
        if self._here(run):
            logs = _logs(run)
            known = set(logs)
            self.callback.on_epoch_end(run.epoch - 1, logs)
            for name in set(logs) - known:
                run.record[name] = float(logs[name])
        self._after(run)

    def state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.callback).items() if _is_plain(value)}

    def load_state(self, state: dict[str, Any]) -> None:
        vars(self.callback).update(state)

    def bring_back(self, attributes: dict[str, Any]) -> None:
        vars(self.callback).update(vars(attributes["callback"]))

    def __getstate__(self) -> dict[str, Any]:
        return {"callback": _without_model(self.callback)}


class KerasCallbackOnBatches(KerasCallback):
    """One that looks at single steps."""

    def before_batch(self, run: Run) -> None:
        if self._here(run):
            self.callback.on_train_batch_begin(run.batch, {})

    def after_batch(self, run: Run) -> None:
        if self._here(run):
            self.callback.on_train_batch_end(run.batch - 1, {} if run.loss is None else {"loss": run.loss})
        self._after(run)


class WriterOnBatches(KerasCallbackOnBatches):
    """One that looks at single steps only to write them down."""

    acts_on_batches = False


def _logs(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.record.items() if name not in _OURS}


def _without_model(callback: Any) -> Any:
    copy = object.__new__(type(callback))
    for name, value in vars(callback).items():
        if name != "_model" and not name.startswith("_writer") and not hasattr(value, "write"):
            copy.__dict__[name] = value
    copy.__dict__["_model"] = None
    return copy


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray)
