"""Callbacks: what users hang into a run, on the ranks that train (`Callback`) or on the driver (`Logger`)."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from orca.errors import ArgumentError, suggest

if TYPE_CHECKING:
    from orca.backends.base import Replica, State


class Run:
    """What a callback can see of a run, and how it can act on it."""

    def __init__(self, replica: Replica, rank: int, world: int, config: dict[str, Any]) -> None:
        self.rank = rank
        self.world = world
        self.config = config
        self.epoch = 0
        """The number of the current epoch, from 1."""
        self.own_epoch = 0
        """Epochs that a callback has found done already, before the run."""
        self.last_epoch = 0
        """The epoch after which this run ends."""
        self.step = 0
        """Steps done, over all fits of the estimator."""
        self.batch = 0
        """Steps done in this epoch, of `batches`."""
        self.batches = 0
        self.loss: float | None = None
        """This rank's loss in the last step; the exact one over all ranks is in `record`."""
        self.record: dict[str, Any] = {}
        """The record of the epoch that has just ended, the same on every rank. What is added to it on rank 0
        appears in the History."""
        self.validates = False
        """Whether this run has validation data."""
        self.resumed = False
        """Whether this run goes on from a checkpoint."""
        self.reason: str | None = None
        self.saves: list[tuple[str, str | None]] = []
        self.ask: Callable[..., None] | None = None
        """Tells servers, which call no callbacks, to take part."""
        self._replica = replica

    @property
    def model(self) -> Any:
        """The framework's own model on this rank."""
        return self._replica.inner_model

    @property
    def optimizer(self) -> Any:
        """The framework's own optimizer on this rank."""
        return self._replica.inner_optimizer

    @property
    def learning_rate(self) -> float | None:
        return self._replica.learning_rate()

    def stop(self, reason: str = "a callback asked for it") -> None:
        """End the run after this step or epoch, on all ranks together."""
        self.reason = reason

    def save(self, path: str, remove: str | None = None) -> None:
        """Have a checkpoint written to `path` by the driver, then the older one at `remove` deleted."""
        self.saves.append((path, remove))

    def snapshot(self) -> State:
        """The whole state of the model; to be called on all ranks at the same place."""
        if self.ask is not None:
            self.ask("state")
        return self._replica.state()

    def restore(self, state: State) -> None:
        """Take over a snapshot; to be called on all ranks at the same place."""
        if self.ask is not None:
            self.ask("load_state", {**state, "model": {}})
        self._replica.load_state(state)


class Callback:
    """Runs inside every rank. Override what you need; each hook is called on all ranks at the same place.

    After `fit` the attributes of rank 0's copy are put back into the object that you passed.
    """

    acts_on_batches = True
    """Whether hooks of single batches may stop the run or save: the ranks then have to ask each other every step."""

    def before_run(self, run: Run) -> None:
        """Before the first epoch."""

    def after_run(self, run: Run) -> None:
        """After the last epoch, also if the run was stopped early."""

    def before_epoch(self, run: Run) -> None:
        """Before an epoch's first batch."""

    def after_epoch(self, run: Run) -> None:
        """After an epoch and its validation; `run.record` holds the results."""

    def before_batch(self, run: Run) -> None:
        """Before a step."""

    def after_batch(self, run: Run) -> None:
        """After a step; `run.loss` holds this rank's loss."""

    def on_gradients(self, run: Run) -> None:
        """When the ranks have agreed on the gradients, before they are clipped and used."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold of this callback: numbers, strings and arrays, in dicts and lists."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""

    def bring_back(self, attributes: dict[str, Any]) -> None:
        """Become, in the user's process, what rank 0's copy has become."""
        self.__dict__.update(attributes)


BATCH_HOOKS = ("before_batch", "after_batch", "on_gradients")


def overrides(callback: Callback, hook: str) -> bool:
    """Whether a callback defines a hook itself."""
    return getattr(type(callback), hook) is not getattr(Callback, hook)


class Logger:
    """Runs on the driver, once for all ranks: writes what the run reports to wherever the driver can write."""

    def start(self, about: dict[str, Any]) -> None:
        """The run begins; `about` holds backend, framework, workers, batch_size, epochs, seed and config."""

    def steps(self, first: int, values: dict[str, Any]) -> None:
        """Values of the steps first, first + 1, … (counted from 1 over all fits): {"loss": array, "lr": array};
        exact over all ranks, told after each epoch."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch has ended; `record` is what the History gets."""

    def end(self, error: BaseException | None) -> None:
        """The run has ended, with an error or without."""


class _Watch(Callback):
    """Compares one value of the records with the best so far."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise ArgumentError(f'mode={mode!r}: expected "auto", "min" or "max".')
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(min_delta)
        self.best: float | None = None

    def value(self, run: Run) -> float | None:
        """The watched result of this epoch; None in an epoch without validation, if it is one of that."""
        found = run.record.get(self.monitor)
        if found is not None:
            return float(found)
        if self.monitor.startswith("val_") and run.validates:
            if not any(name.startswith("val_") for name in run.record):
                return None
        known = [name for name, value in run.record.items() if isinstance(value, float | int)]
        hint = " Give validation_data= to fit." if self.monitor.startswith("val_") and not run.validates else ""
        raise ArgumentError(
            f"monitor={self.monitor!r} is not among the results: {', '.join(known)}.{hint}"
            + suggest(self.monitor, known)
        )

    @property
    def _less(self) -> bool:
        return self.mode == "min" or (self.mode == "auto" and less_is_better(self.monitor))

    def improves(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        return value < self.best - self.min_delta if self._less else value > self.best + self.min_delta


def less_is_better(name: str) -> bool:
    """Whether a result is better the smaller it is, judged by its name.

    >>> less_is_better("val_loss"), less_is_better("val_accuracy")
    (True, False)
    """
    words = name.removeprefix("val_").lower()
    parts = ("loss", "error", "mae", "mse", "mape", "nll", "entropy", "perplexity", "deviance", "distance")
    return any(part in words for part in parts)


class EarlyStopping(_Watch):
    """Ends the run when a result has not become better for more than `patience` epochs in a row.

    `min_delta` is how much better it must be to count, `baseline` a value to beat from the start, and with
    `restore_best` the model goes back to its state of the best epoch.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 0,
        min_delta: float = 0.0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best: bool = False,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 0:
            raise ArgumentError(f"patience={patience!r}: expected a whole number of at least 0.")
        self.patience = patience
        self.baseline = baseline
        self.best = baseline
        self.restore_best = restore_best
        self.best_epoch = 0
        self.waited = 0
        self.stopped_epoch = 0
        self._kept: State | None = None

    def before_run(self, run: Run) -> None:
        if not run.resumed:
            self.best, self.best_epoch, self.waited, self._kept = self.baseline, 0, 0, None

    def after_epoch(self, run: Run) -> None:
        value = self.value(run)
        if value is None:
            return
        if self.improves(value):
            self.best, self.best_epoch, self.waited = value, run.epoch, 0
            if self.restore_best:
                self._kept = run.snapshot()
            return
        self.waited += 1
        if self.waited > self.patience:
            self.stopped_epoch = run.epoch
            best = f"{self.best:.6g}" if self.best is not None else "none"
            run.stop(f"{self.monitor} did not improve on {best} in {self.waited} epochs")

    def after_run(self, run: Run) -> None:
        if self._kept is not None and self.best_epoch != run.epoch:
            run.restore(self._kept)
        self._kept = None

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited, "kept": self._kept}

    def load_state(self, state: dict[str, Any]) -> None:
        self.best, self.best_epoch, self.waited = state["best"], state["best_epoch"], state["waited"]
        self._kept = state["kept"]


class ModelCheckpoint(_Watch):
    """Saves the estimator after epochs into folders below `path`, which `Estimator.load` reads.

    With `monitor` only epochs that reach the best `keep` values are saved, without it the last `keep` ones;
    ``keep=None`` keeps all. Folders are called ``epoch-0001`` and so on.
    """

    def __init__(self, path: str, *, monitor: str | None = None, mode: str = "auto", keep: int | None = 1) -> None:
        super().__init__(monitor or "", mode)
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise ArgumentError(f"keep={keep!r}: expected a whole number of at least 1, or None for all.")
        self.path = str(path).rstrip("/")
        self.keep = keep
        self.saved: list[tuple[float, str]] = []
        """Value (or epoch) and folder of what is kept, the best or latest last."""

    def after_epoch(self, run: Run) -> None:
        value = self.value(run) if self.monitor else float(run.epoch)
        if value is None or math.isnan(value):
            return
        less = bool(self.monitor) and self._less
        folder = f"{self.path}/epoch-{run.epoch:04d}"
        # An epoch that is run again takes the place of the old one.
        self.saved = [kept for kept in self.saved if kept[1] != folder]
        removed = None
        if self.keep is not None and len(self.saved) >= self.keep:
            if self.monitor and (value >= self.saved[0][0] if less else value <= self.saved[0][0]):
                return
            removed = self.saved.pop(0)[1]
        run.save(folder, remove=removed)
        self.saved.append((value, folder))
        if self.monitor:
            self.saved.sort(key=lambda kept: -kept[0] if less else kept[0])
        self.best = self.saved[-1][0]

    @property
    def best_path(self) -> str | None:
        """The folder of the best (or, without `monitor`, the latest) epoch."""
        return self.saved[-1][1] if self.saved else None

    def state(self) -> dict[str, Any]:
        return {"saved": [list(kept) for kept in self.saved]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.saved = [(float(value), str(folder)) for value, folder in state["saved"]]


class LRScheduler(Callback):
    """Changes the learning rate with any scheduler of the framework, after every epoch or every step.

    `scheduler` is ``fn(optimizer, config)`` or ``fn(optimizer)``. One that wants to see a result, such as
    ReduceLROnPlateau, is given `monitor`: "val_loss" if there is one, else "loss", unless you name another.
    """

    acts_on_batches = False

    def __init__(self, scheduler: Callable[..., Any], *, per: str = "epoch", monitor: str | None = None) -> None:
        if per not in ("epoch", "step", "batch"):
            raise ArgumentError(f'per={per!r}: expected "epoch" or "step".')
        if not callable(scheduler):
            raise ArgumentError(
                f"LRScheduler({scheduler!r}): expected a function fn(optimizer, config) that returns a scheduler; "
                "a scheduler object belongs to an optimizer that the ranks do not have."
            )
        self.scheduler = scheduler
        self.per = "epoch" if per == "epoch" else "step"
        self.monitor = monitor
        self._made: Any = None
        self._pending: dict[str, Any] | None = None

    def before_run(self, run: Run) -> None:
        if self._made is None or getattr(self._made, "optimizer", None) is not run.optimizer:
            kept = _rates(run.optimizer)
            self._made = self.scheduler(*(run.optimizer, run.config)[: self._arguments()])
            if self._pending is not None:
                # Making a scheduler sets the rates back to their start; it goes on from where it was.
                for group, values in zip(_groups(run.optimizer), kept, strict=True):
                    group.update(values)
        if self._pending is not None:
            self._made.load_state_dict(_revived(self._pending))
            self._pending = None

    def _arguments(self) -> int:
        """How many of (optimizer, config) the function takes; a scheduler's class takes the optimizer alone."""
        if inspect.isclass(self.scheduler):
            return 1
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(self.scheduler).parameters.values()
        return max(1, sum(p.default is p.empty and p.kind in places for p in parameters))

    def after_epoch(self, run: Run) -> None:
        if self.per == "epoch":
            self._advance(run)

    def after_batch(self, run: Run) -> None:
        if self.per == "step":
            self._advance(run)

    def _advance(self, run: Run) -> None:
        parameters = inspect.signature(self._made.step).parameters.values()
        if not any(parameter.default is parameter.empty for parameter in parameters):
            self._made.step()
            return
        name = self.monitor or ("val_loss" if run.validates else "loss")
        if name in run.record:
            self._made.step(run.record[name])
        elif self.per == "step" or not (name.startswith("val_") and run.validates):
            told = ", ".join(run.record) or "none within an epoch"
            raise ArgumentError(f"monitor={name!r} is not among the results: {told}.")

    def state(self) -> dict[str, Any]:
        if self._made is None:
            return {"scheduler": self._pending}
        return {"scheduler": _plain(self._made.state_dict())}

    def load_state(self, state: dict[str, Any]) -> None:
        self._pending = state["scheduler"]

    def __getstate__(self) -> dict[str, Any]:
        # The scheduler holds the rank's optimizer; it stays there.
        return {**self.__dict__, "_made": None, "_pending": self.state()["scheduler"]}


def _rates(optimizer: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in _groups(optimizer)]


def _groups(optimizer: Any) -> list[Any]:
    several = optimizer.values() if isinstance(optimizer, dict) else [optimizer]
    return [group for one in several for group in getattr(one, "param_groups", [])]


def _plain(value: Any) -> Any:
    """What of a scheduler's state can be kept without pickling; functions in it come from its creator anyway."""
    if isinstance(value, Counter):
        return {"counter": [[key, count] for key, count in value.items()]}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _revived(value: Any) -> Any:
    """The reverse of `_plain`."""
    if isinstance(value, dict):
        if set(value) == {"counter"}:
            return Counter(dict(value["counter"]))
        return {key: _revived(item) for key, item in value.items()}
    return [_revived(item) for item in value] if isinstance(value, list) else value


class Progress(Logger):
    """Shows a progress bar per epoch, or with ``show=False`` none; without it bars are shown on terminals and
    in notebooks."""

    def __init__(self, show: bool = True) -> None:
        self.show = show


class LambdaCallback(Callback):
    """A callback made of functions: ``LambdaCallback(after_epoch=lambda run: print(run.record))``."""

    _hooks: ClassVar[Sequence[str]] = (
        "before_run", "after_run", "before_epoch", "after_epoch", "before_batch", "after_batch", "on_gradients",
    )  # fmt: skip

    def __new__(cls, **hooks: Callable[[Run], None]) -> LambdaCallback:
        for name in hooks:
            if name not in cls._hooks:
                raise ArgumentError(f"LambdaCallback has no hook {name!r}. Hooks: {', '.join(cls._hooks)}.")
        # A class of its own, so that only the hooks given count as defined.
        made = type("LambdaCallback", (cls,), {name: staticmethod(hook) for name, hook in hooks.items()})
        return object.__new__(made)

    def __init__(self, **hooks: Callable[[Run], None]) -> None:
        super().__init__()


def split(given: Any, adapt: Callable[[object], Callback | None] | None = None) -> tuple[list[Callback], list[Logger]]:
    """What a user gives as ``callbacks=``, apart by where it runs; `adapt` translates those of the framework."""
    if given is None:
        items: list[Any] = []
    else:
        items = list(given) if isinstance(given, list | tuple) else [given]
    if adapt is not None:
        items = [item if isinstance(item, Callback | Logger) else adapt(item) or item for item in items]
    for item in items:
        if not isinstance(item, Callback | Logger):
            name = item.__name__ if isinstance(item, type) else type(item).__name__
            raise ArgumentError(
                f"callbacks= holds {'the class ' if isinstance(item, type) else 'a '}{name}; expected objects of "
                "orca.callbacks.Callback or Logger."
            )
    return [c for c in items if isinstance(c, Callback)], [c for c in items if isinstance(c, Logger)]


def __getattr__(name: str) -> Any:
    if name == "MLflow":
        from orca.mlflow_logger import MLflow

        return MLflow
    if name in ("CSVLogger", "JSONLLogger", "TensorBoard"):
        import orca.loggers

        return getattr(orca.loggers, name)
    raise AttributeError(f"module 'orca.callbacks' has no attribute {name!r}")
