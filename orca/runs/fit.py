"""The driver's side of `fit`: checks the request, plans the run, trains and returns what was learned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from orca.backends.base import FitCheck, StepOptions
from orca.backends.worker.plan import FitPlan, FitResult
from orca.callbacks import Callback, Logger, LRScheduler, Progress, split
from orca.core.arguments import check_count
from orca.core.pickling import check_picklable
from orca.errors import ArgumentError
from orca.history import History
from orca.runs.checkpoints import CheckpointWriter, reach_of
from orca.runs.elastic import ElasticGang, check_min_workers
from orca.runs.fit_run import FitRun, bring_back, logged
from orca.runs.progress import ProgressBar
from orca.runs.ranks import remember
from orca.runs.rows import form_of, stored, validation_form
from orca.runs.states import about, resumed
from orca.runs.values import FitRequest, Learned, Length, Setup
from orca.runtimes.context import Context
from orca.shards.adapters.registry import adapt
from orca.shards.columns import flat
from orca.shards.on_rank import SentSource
from orca.shards.tree import kind_of
from orca.triggers import EveryEpoch, Trigger

_ENDLESS = 2**31
"""Epochs of a run that only its number of steps ends."""


class Fitted(NamedTuple):
    """The outcome of a fit."""

    learned: Learned
    history: History
    error: BaseException | None = None
    """What failed after the training itself was complete, such as a logger that could not close its file."""


@dataclass(frozen=True)
class _Checked:
    """The parts of a request after all checks that need no data."""

    batch_size: int
    epochs: int | None
    max_failures: int
    callbacks: Sequence[Callback]
    loggers: Sequence[Logger]
    trigger: Trigger | None
    options: StepOptions


def fit(setup: Setup, learned: Learned, request: FitRequest, context: Context) -> Fitted:
    """Train as requested. A failure raises before anything is returned, so that nothing changes."""
    checked = _check(setup, request)
    start, plan = _plan(setup, learned, request, checked)
    check_picklable(**setup.spec.travels(), callbacks=checked.callbacks, metrics=setup.metrics)
    workers = ElasticGang(setup, context, request.recovery.min_workers)
    writer = CheckpointWriter(about(setup, start), setup.model_dir)
    fitted: Fitted | None = None
    try:
        with ExitStack() as stack:
            form = form_of(setup, request.rows, checked.batch_size, most_rows=_most_rows(checked, request.length))
            sources = {"train": stack.enter_context(stored(request.rows.data, form, context.engine))}
            if plan.validate:
                steps = plan.validation_steps
                most = None if steps is None else steps * checked.batch_size
                form = validation_form(form, request.validation.data, most)
                sources["validation"] = stack.enter_context(stored(request.validation.data, form, context.engine))
            bar = stack.enter_context(_bar(plan, checked, request))
            stack.enter_context(logged(checked.loggers, {**about(setup, start), **_facts(setup, plan)}))
            stack.enter_context(workers)
            fetched = frozenset(name for name, rows in sources.items() if isinstance(rows, SentSource))
            plan = replace(plan, fetched=fetched)
            if setup.model_dir is not None and plan.trigger is not None and setup.backend.in_parts(setup.spec):
                plan = replace(plan, reach=stack.enter_context(reach_of(setup.model_dir)))
            run = FitRun(plan, bar, writer, checked.loggers)
            result = run.train(start, workers, sources, checked.max_failures)
            fitted = Fitted(_after(start, result), run.history(result))
            remember(fitted.learned, workers.gang)
        bring_back(checked.callbacks, result.callbacks)
    except BaseException as error:
        if fitted is None:
            raise
        return fitted._replace(error=error)
    return fitted


def _check(setup: Setup, request: FitRequest) -> _Checked:
    """Check what can be checked without data, before anything starts."""
    steps, recovery, preferences = request.steps, request.recovery, request.preferences
    batch_size = _batch_size(setup, request)
    epochs = request.length.epochs
    if epochs is None and request.length.max_steps is None:
        epochs = setup.epochs
    max_failures = recovery.max_failures
    check_min_workers(setup, recovery.min_workers, max_failures)
    hooks, loggers = split(request.callbacks, setup.backend.framework.adapt_callback)
    schedulers = [callback for callback in setup.callbacks if isinstance(callback, LRScheduler)]
    others = [callback for callback in setup.callbacks if callback not in schedulers]
    callbacks = [*schedulers, *hooks, *others]
    _check_monitors(callbacks, request.validation.data is not None)
    trigger = recovery.trigger
    if trigger is not None and setup.model_dir is None and not max_failures:
        raise ArgumentError(
            "checkpoint_trigger= has nowhere to write to: give model_dir= when creating the estimator, or "
            "max_failures= to fit, which keeps the last checkpoint in memory."
        )
    if request.validation.trigger is not None and request.validation.data is None:
        raise ArgumentError("validation_trigger= needs rows to validate on: give validation_data=.")
    if max_failures and trigger is None:
        trigger = EveryEpoch()
    options = StepOptions(
        steps.clip_norm or preferences.clip_norm,
        steps.clip_value or preferences.clip_value,
        steps.accumulate,
        steps.class_weight,
    )
    validates = request.validation.trigger
    weighted = request.rows.sample_weight is not None or steps.class_weight is not None
    setup.backend.check_fit(setup.spec, FitCheck(setup.workers, options, callbacks, trigger, weighted, validates))
    if preferences.tensorboard is not None:
        loggers = [*loggers, preferences.tensorboard]
    return _Checked(batch_size, epochs, max_failures, callbacks, loggers, trigger, options)


def _batch_size(setup: Setup, request: FitRequest) -> int:
    """Return the global batch size: the requested one, the data's own (DataLoader), or the estimator's."""
    batch_size = request.steps.batch_size
    if batch_size is None:
        batch_size = adapt(request.rows.data).batch_size
    batch_size = setup.batch_size if batch_size is None else check_count("batch_size", batch_size)
    if batch_size < setup.workers:
        raise ArgumentError(
            f"batch_size={batch_size} is smaller than workers={setup.workers}. batch_size counts the rows of "
            f"a step over all workers: use at least {setup.workers}."
        )
    return batch_size


def _check_monitors(callbacks: Sequence[Callback], validates: bool) -> None:
    for callback in callbacks:
        monitor = str(getattr(callback, "monitor", None) or "")
        if monitor.startswith("val_") and not validates:
            raise ArgumentError(f"{type(callback).__name__} monitors {monitor!r}: give validation_data= to fit.")


def _plan(setup: Setup, learned: Learned, request: FitRequest, checked: _Checked) -> tuple[Learned, FitPlan]:
    """Return the state to start from and the plan for the ranks."""
    length, validation = request.length, request.validation
    if length.initial_epoch is not None:
        learned = replace(learned, epoch=length.initial_epoch)
    start = resumed(setup, learned, request.recovery.resume)
    position = start.position if request.recovery.resume else None
    first = start.epoch if position is None else position.epoch
    begun = start.epoch if position is None else position.begun
    plan = FitPlan(
        first,
        _last_epoch(first, begun, checked.epochs, length),
        checked.batch_size,
        shuffle=request.steps.shuffle,
        first_step=start.step,
        max_steps=length.max_steps,
        validate=validation.data is not None,
        validation_freq=validation.epochs,
        validation_trigger=None if isinstance(validation.trigger, EveryEpoch) else validation.trigger,
        validation_steps=validation.steps,
        steps_per_epoch=length.steps_per_epoch,
        callbacks=checked.callbacks,
        options=checked.options,
        trigger=checked.trigger,
        terminate_on_nan=request.steps.terminate_on_nan,
        resume=position,
        feature_names=_feature_names(request),
        steps_wanted=any(type(logger).steps is not Logger.steps for logger in checked.loggers),
    )
    return start, plan


def _feature_names(request: FitRequest) -> tuple[str, ...]:
    """Return the names of the features' columns, as far as the call tells them."""
    rows = request.rows
    if rows.feature_cols is None and rows.y is not None and kind_of(rows.data) == "frame":
        return tuple(str(name) for name in rows.data.columns)
    return tuple(flat(rows.feature_cols))


def _last_epoch(first: int, begun: int, epochs: int | None, length: Length) -> int:
    if epochs is None:
        return first + _ENDLESS
    return epochs if length.initial_epoch is not None else begun + epochs


def _most_rows(checked: _Checked, length: Length) -> int | None:
    """Return how many rows the run can use, if its steps are limited; the same in a run that is resumed."""
    limits = [] if length.max_steps is None else [length.max_steps]
    if length.steps_per_epoch is not None and checked.epochs is not None:
        limits.append(length.steps_per_epoch * checked.epochs)
    return min(limits) * checked.batch_size if limits else None


def _after(start: Learned, result: FitResult) -> Learned:
    """Return what was learned in a run."""
    learned = replace(start, state=result.state, example=result.example, version=start.version + 1)
    if not result.records:
        return learned
    return replace(learned, position=result.position, epoch=result.epoch, step=result.step)


def _bar(plan: FitPlan, checked: _Checked, request: FitRequest) -> ProgressBar:
    chosen = [logger.show for logger in checked.loggers if isinstance(logger, Progress)]
    last_epoch = plan.last_epoch if checked.epochs is not None else None
    return ProgressBar(last_epoch, chosen[-1] if chosen else request.display.show)


def _facts(setup: Setup, plan: FitPlan) -> dict[str, Any]:
    """Return facts about the run for loggers."""
    endless = plan.last_epoch >= plan.first_epoch + _ENDLESS
    return {
        "workers": setup.workers,
        "batch_size": plan.batch_size,
        "epochs": None if endless else plan.last_epoch - plan.first_epoch,
        "config": dict(setup.spec.config),
    }
