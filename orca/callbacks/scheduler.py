"""Learning rate schedules, with the framework's own schedulers."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from orca.callbacks.base import Callback, Run
from orca.errors import ArgumentError


class LRScheduler(Callback):
    """Changes the learning rate with any of the framework's schedulers, after every epoch or every step.

    Args:
        scheduler: ``fn(optimizer, config)`` or ``fn(optimizer)`` that returns a scheduler, called on each rank.
        per: "epoch" or "step" ("batch" means the same): when to advance the schedule.
        monitor: Result for a scheduler that takes one, such as ReduceLROnPlateau. The default is "val_loss" with
            validation data, else "loss".

    Raises:
        ArgumentError: If `per` is invalid or `scheduler` is not callable.
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
        self._instance: Any = None
        self._pending: dict[str, Any] | None = None

    def before_run(self, run: Run) -> None:
        if self._instance is None or getattr(self._instance, "optimizer", None) is not run.optimizer:
            options = _options(run.optimizer)
            self._instance = self.scheduler(*(run.optimizer, run.config)[: self._count_arguments()])
            if self._pending is not None:
                # Creating a scheduler resets the rates to their initial values; a resumed one keeps the current ones.
                for group, values in zip(_groups(run.optimizer), options, strict=True):
                    group.update(values)
        if self._pending is not None:
            self._instance.load_state_dict(_from_plain(self._pending))
            self._pending = None

    def _count_arguments(self) -> int:
        """Return how many of (optimizer, config) the function takes; a scheduler class takes the optimizer only."""
        if inspect.isclass(self.scheduler):
            return 1
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(self.scheduler).parameters.values()
        return max(1, sum(p.default is p.empty and p.kind in positional for p in parameters))

    def after_epoch(self, run: Run) -> None:
        if self.per == "epoch":
            self._advance(run)

    def after_batch(self, run: Run) -> None:
        if self.per == "step":
            self._advance(run)

    def _advance(self, run: Run) -> None:
        parameters = inspect.signature(self._instance.step).parameters.values()
        if not any(parameter.default is parameter.empty for parameter in parameters):
            self._instance.step()
            return
        name = self.monitor or ("val_loss" if run.validates else "loss")
        if name in run.record:
            self._instance.step(run.record[name])
        elif self.per == "step" or not (name.startswith("val_") and run.validates):
            names = ", ".join(run.record) or "none within an epoch"
            raise ArgumentError(f"monitor={name!r} is not among the results: {names}.")

    def state(self) -> dict[str, Any]:
        if self._instance is None:
            return {"scheduler": self._pending}
        return {"scheduler": _to_plain(self._instance.state_dict())}

    def load_state(self, state: dict[str, Any]) -> None:
        self._pending = state["scheduler"]

    def __getstate__(self) -> dict[str, Any]:
        # The scheduler holds the rank's optimizer, so only its state leaves the rank.
        return {**self.__dict__, "_instance": None, "_pending": self.state()["scheduler"]}


def _options(optimizer: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in _groups(optimizer)]


def _groups(optimizer: Any) -> list[Any]:
    optimizers = optimizer.values() if isinstance(optimizer, dict) else [optimizer]
    return [group for one in optimizers for group in getattr(one, "param_groups", [])]


def _to_plain(value: Any) -> Any:
    """Return a scheduler's state without what needs pickling; its functions come from its creator anyway."""
    if isinstance(value, Counter):
        return {"counter": [[key, count] for key, count in value.items()]}
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return value


def _from_plain(value: Any) -> Any:
    """Reverse `_to_plain`."""
    if isinstance(value, dict):
        if set(value) == {"counter"}:
            return Counter(dict(value["counter"]))
        return {key: _from_plain(item) for key, item in value.items()}
    return [_from_plain(item) for item in value] if isinstance(value, list) else value
