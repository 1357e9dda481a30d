"""The Estimator: what users hold. It checks, dispatches to a gang of ranks, and keeps what was learned."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from orca import predicting
from orca.backends.base import Backend, FitCheck, Spec, State, StepOptions
from orca.backends.worker.scoring import evaluate_on_rank
from orca.backends.worker.training import FitPlan
from orca.callbacks import Logger, LRScheduler, less_is_better, split
from orca.callbacks import Progress as ProgressSetting
from orca.context import Context, current
from orca.core.arguments import check_classes, check_count, check_limit, value_range
from orca.core.pickling import check_picklable
from orca.errors import ArgumentError
from orca.fitting import Fitting, bring_back, logged
from orca.history import History
from orca.keeper import Keeper
from orca.making import Making
from orca.progress import Progress
from orca.ranks import Ranks
from orca.saving import Saving
from orca.shards.columns import Columns, flat
from orca.shards.convert import Form, created, recognise, to_shards
from orca.shards.tree import take_rows
from orca.shards.xshards import XShards
from orca.sklearn_api import SklearnApi
from orca.triggers import EveryEpoch, as_trigger

_ENDLESS = 2**31
"""Epochs of a run that only its number of steps ends."""


class Estimator(Making, Ranks, Saving, SklearnApi):
    """Trains and runs a standard model on several workers. Make one with a ``from_*`` method.

    >>> import numpy as np, torch
    >>> est = Estimator.from_torch(model=torch.nn.Linear(2, 1), optimizer=torch.optim.SGD,
    ...                            loss=torch.nn.MSELoss(), config={"lr": 0.1}, workers=1, seed=1)
    >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> history = est.fit(x, x.sum(axis=1), epochs=200, batch_size=4)
    >>> bool(history["loss"][-1] < 1e-3)
    True
    """

    def __init__(
        self,
        backend: Backend[Any],
        spec: Spec,
        *,
        workers: int = 1,
        metrics: Any = None,
        seed: int | None = None,
        model_dir: str | None = None,
        epochs: int = 1,
        batch_size: int = 32,
    ) -> None:
        self.backend = backend
        self.spec = spec
        self.workers = check_count("workers", workers)
        if seed is None:
            seed = backend.framework.default_seed(spec)
        self.seed = secrets.randbelow(2**31) if seed is None else check_count("seed", seed, least=0)
        backend.check(spec, self.workers)
        self.metrics = backend.framework.metrics(spec, metrics)
        self.model_dir = None if model_dir is None else str(model_dir)
        self.epochs = check_count("epochs", epochs)
        self.batch_size = check_count("batch_size", batch_size)
        self._epoch = 0
        self._step = 0
        callbacks = backend.framework.own_callbacks(spec)
        self._scheduler = next((callback for callback in callbacks if isinstance(callback, LRScheduler)), None)
        self._own_callbacks = [callback for callback in callbacks if callback is not self._scheduler]
        self._state: State | None = None
        self._position: dict[str, Any] | None = None
        self._example: Any = None
        self._like: tuple[Any, Any] | None = None
        self._fast: tuple[Any, Estimator] | None = None
        self._version = 0
        self._owner = uuid.uuid4().hex
        self._clip_norm: float | None = None
        self._clip_value: tuple[float, float] | None = None
        self._tensorboard: Any = None
        self._params = {}

    @property
    def epoch(self) -> int:
        """Epochs done, a broken off one included."""
        return self._epoch

    @property
    def step(self) -> int:
        """Steps done, over all fits."""
        return self._step

    def fit(
        self,
        data: Any,
        y: Any = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        max_steps: int | None = None,
        validation_data: Any = None,
        validation_freq: int = 1,
        validation_steps: int | None = None,
        steps_per_epoch: int | None = None,
        callbacks: Any = None,
        feature_cols: Columns = None,
        label_cols: Columns = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        shuffle: bool = True,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | tuple[float, float] | None = None,
        checkpoint_trigger: Any = None,
        initial_epoch: int | None = None,
        resume: bool | str = False,
        max_failures: int = 0,
        terminate_on_nan: bool = True,
        progress: bool | None = None,
        verbose: int | None = None,
        train_resize_batch_num: int | None = None,
    ) -> History:
        """Train for some epochs and return their History; a further fit goes on from there.

        ``data`` is ``x`` with ``y`` beside it, a tuple ``(x, y)``, a dict ``{"x": …, "y": …}`` (each an array
        or, for several inputs, a dict, list or tuple of arrays), an XShards of such dicts, or anything with
        columns (a pandas, Spark or Ray frame, an Arrow table, an XShards of frames) together with
        ``feature_cols`` and ``label_cols``; a torch or tf.data dataset; or a creator ``fn(config, batch_size)``
        that returns one of these. ``validation_data`` likewise, scored after every ``validation_freq`` epochs.

        ``batch_size`` counts the rows of a step over all workers; ``accumulate=k`` computes them in k pieces, to
        the same effect with less memory. ``max_steps`` ends the run after so many steps, whatever the epochs;
        ``steps_per_epoch`` and ``validation_steps`` cut an epoch and its validation short, and are never needed.
        ``sample_weight`` is an array or a column's name, ``class_weight`` a dict; both make the loss a weighted
        mean. ``clip_norm`` limits the norm of the whole gradient, ``clip_value`` each number of it.

        ``checkpoint_trigger`` (`orca.triggers`) says when a checkpoint is written to ``model_dir``. ``resume``
        is the path of one, or True for the newest in ``model_dir`` or else where this estimator stopped: the
        run goes on exactly there, in the middle of an epoch too, and ``epochs`` counts from where it began.
        With ``max_failures=n`` a failed gang is started again from its last checkpoint, up to n times.
        ``initial_epoch`` sets the number of epochs that count as done; the run then ends with epoch ``epochs``.
        ``progress`` shows a bar or not (by itself, if somebody can see it); ``verbose`` is Keras' word for it.
        ``train_resize_batch_num`` is taken from old programs for MXNet and never needed: uneven data just works.
        """
        if isinstance(y, int) and not isinstance(y, bool):
            epochs, y = y, None
        if progress is None and verbose is not None:
            progress = bool(verbose)
        if batch_size is None and recognise(data) == "torch":
            batch_size = getattr(data, "batch_size", None)  # a DataLoader brings its own
        batch_size = self.batch_size if batch_size is None else check_count("batch_size", batch_size)
        if batch_size < self.workers:
            raise ArgumentError(
                f"batch_size={batch_size} is smaller than workers={self.workers}. batch_size counts the rows of "
                f"a step over all workers: use at least {self.workers}."
            )
        if max_steps is not None:
            max_steps = check_count("max_steps", max_steps)
        if epochs is not None or max_steps is None:
            epochs = check_count("epochs", self.epochs if epochs is None else epochs)
        max_failures = check_count("max_failures", max_failures, least=0)
        hooks, loggers = split(callbacks, self.backend.framework.adapt_callback)
        hooks = [*hooks, *self._own_callbacks]
        for hook in hooks:
            monitor = str(getattr(hook, "monitor", None) or "")
            if monitor.startswith("val_") and validation_data is None:
                raise ArgumentError(f"{type(hook).__name__} watches {monitor!r}: give validation_data= to fit.")
        trigger = as_trigger(checkpoint_trigger)
        if trigger is not None and self.model_dir is None and not max_failures:
            raise ArgumentError(
                "checkpoint_trigger= has nowhere to write to: give model_dir= when creating the estimator, or "
                "max_failures= to fit, which keeps the last checkpoint in memory."
            )
        if max_failures and trigger is None:
            trigger = EveryEpoch()
        options = StepOptions(
            check_limit("clip_norm", clip_norm) or self._clip_norm,
            value_range(clip_value) or self._clip_value,
            check_count("accumulate", accumulate),
            check_classes(class_weight),
        )
        if self._scheduler is not None:
            hooks = [self._scheduler, *hooks]
        weighted = sample_weight is not None or class_weight is not None
        self.backend.check_fit(self.spec, FitCheck(self.workers, options, hooks, trigger, weighted))
        with self._undone_by_failure() as learned:
            if initial_epoch is not None:
                self._epoch = check_count("initial_epoch", initial_epoch, least=0)
            position = self._resume(resume)
            begun = self.epoch if position is None else position["begun"]
            first = self.epoch if position is None else position["epoch"]
            last = first + _ENDLESS if epochs is None else epochs if initial_epoch is not None else begun + epochs
            loggers = [*loggers, *([self._tensorboard] if self._tensorboard is not None else [])]
            plan = FitPlan(
                first,
                last,
                batch_size,
                shuffle=shuffle,
                first_step=self.step,
                max_steps=max_steps,
                validate=validation_data is not None,
                validation_freq=check_count("validation_freq", validation_freq),
                validation_steps=None
                if validation_steps is None
                else check_count("validation_steps", validation_steps),
                steps_per_epoch=None if steps_per_epoch is None else check_count("steps_per_epoch", steps_per_epoch),
                callbacks=hooks,
                options=options,
                trigger=trigger,
                terminate_on_nan=terminate_on_nan,
                resume=position,
                steps_wanted=any(type(logger).steps is not Logger.steps for logger in loggers),
            )
            shown = [logger.show for logger in loggers if isinstance(logger, ProgressSetting)]
            check_picklable(**self.spec.travels(), callbacks=hooks, metrics=self.metrics)
            context = current()
            gang = self._gang(context)
            with ExitStack() as stack:
                form = self._form(feature_cols, label_cols, batch_size, sample_weight)
                sources = {"train": stack.enter_context(_borrowed(data, y, context, form))}
                if validation_data is not None:
                    form = replace(form, argument="validation_data", weights=None)
                    sources["validation"] = stack.enter_context(_borrowed(validation_data, None, context, form))
                last_shown = last if epochs is not None else None
                show = stack.enter_context(Progress(last_shown, shown[-1] if shown else progress))
                stack.enter_context(logged(loggers, {**self._about(), **self._run_facts(plan)}))
                stack.enter_context(gang.lock)
                fitting = Fitting(plan, show, Keeper(self._about(), self.model_dir), loggers)
                result = fitting.run(gang, lambda: self._job(gang), self._state, sources, max_failures)
                self._state, self._example = result.state, result.example
                self._version += 1
                if result.records:
                    self._position, self._epoch, self._step = result.position, result.epoch, result.step
                self._remember(gang)
                learned.append(True)
            bring_back(hooks, result.callbacks)
            return fitting.history(result)

    @contextmanager
    def _undone_by_failure(self) -> Iterator[list[bool]]:
        """A fit that fails leaves the estimator as it was, unless the list says that all was learned before."""
        before = dict(self.__dict__)
        learned: list[bool] = []
        try:
            yield learned
        except BaseException:
            if not learned:
                # A later state may have reached ranks under the next version's number: skip that.
                self.__dict__.update({**before, "_owner": uuid.uuid4().hex})
            raise

    def evaluate(
        self,
        data: Any,
        y: Any = None,
        *,
        batch_size: int = 256,
        feature_cols: Columns = None,
        label_cols: Columns = None,
        sample_weight: Any = None,
    ) -> dict[str, float]:
        """Return loss and metrics over all rows, exactly as one process over all rows would."""
        return self._evaluate(data, y, self.metrics, batch_size, feature_cols, label_cols, sample_weight)

    def _evaluate(
        self,
        data: Any,
        y: Any,
        metrics: Sequence[Any],
        batch_size: int = 256,
        feature_cols: Columns = None,
        label_cols: Columns = None,
        sample_weight: Any = None,
    ) -> dict[str, float]:
        self.backend.check_evaluate(self.spec)
        batch_size = check_count("batch_size", batch_size)
        context = current()
        gang = self._gang(context)
        form = self._form(feature_cols, label_cols, batch_size, sample_weight, need_labels=True)
        with _borrowed(data, y, context, form) as shards, gang.lock:
            show = Progress(0, show=False)
            job = replace(self._job(gang), metrics=tuple(metrics))
            results = gang.call(evaluate_on_rank, job, batch_size, sources={"data": shards}, on_event=show)
            self._remember(gang)
        return dict(results[0])

    def score(self, data: Any, y: Any = None, **more: Any) -> float:
        """One number, the better the greater, as scikit-learn expects: the first metric (an error with its sign
        turned), or without metrics the accuracy of a classifier and R² of anything else."""
        framework = self.backend.framework
        name = self.metrics[0].name if self.metrics else framework.score_name(self.spec)
        metrics = self.metrics[:1] or framework.metrics(self.spec, name)
        value = self._evaluate(data, y, metrics, **more)[name]
        return -value if less_is_better(name) else value

    def predict(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        feature_cols: Columns = None,
        output_cols: str | Sequence[str] | None = None,
        accelerator: str | None = None,
    ) -> Any:
        """Return the model's outputs, row by row as given: arrays for arrays, a frame for a frame.

        An XShards, DataFrame (pandas, Spark) or Ray Dataset comes back with ``prediction`` added to each row,
        or with the names of ``output_cols``; XShards and Spark DataFrames are computed when needed. ``batch_size``
        is how many rows the model gets at once: 256, or for OpenVINO what suits its inputs.

        ``accelerator="openvino"`` converts a torch, Keras or MXNet model to OpenVINO first, once for each state of it,
        and compares both on the first rows (up to 32): they may differ by 1e-3 of a value plus 1e-4.
        """
        return predicting.predict(self, data, batch_size, feature_cols, output_cols, accelerator)

    def quantize(
        self,
        calibration_data: Any,
        *,
        feature_cols: Columns = None,
        rows: int = 300,
        preset: str = "mixed",
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> Estimator:
        """Return an OpenVINO estimator of this model in int8, made by NNCF's post-training quantisation.

        ``calibration_data`` is anything that `predict` takes, with rows like those to come; its first ``rows`` serve.
        ``preset`` is "mixed" or "performance" (coarser, faster); ``config`` is that of `from_openvino`, and
        ``options`` go to ``nncf.quantize``. Save the result as ``.xml`` with `save`.
        """
        from orca.backends.openvino.quantizing import quantize

        count = check_count("rows", rows)
        sample = predicting.sample(self, calibration_data, feature_cols, count)
        whole = (
            self
            if self.backend.framework.inference_only
            else predicting.converted(self, take_rows(sample, 0, predicting.SAMPLE), config)
        )
        spec: Any = whole.spec
        if config is not None:
            spec = replace(spec, config={**spec.config, **config})
        return Estimator(whole.backend, quantize(spec, sample, preset, options), workers=self.workers)

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Limit the norm of the whole gradient in every fit to come."""
        self._clip_norm = check_limit("clip_norm", clip_norm)

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Limit each number of the gradient to this range in every fit to come."""
        self._clip_value = value_range((min, max))

    def clear_gradient_clipping(self) -> None:
        """Use gradients as they are again."""
        self._clip_norm = self._clip_value = None

    def set_tensorboard(self, log_dir: str, app_name: str = "") -> None:
        """Write the course of every fit to come to TensorBoard files below ``log_dir/app_name``."""
        from orca.loggers import TensorBoard

        self._tensorboard = TensorBoard(log_dir, app_name)

    def get_train_summary(self, tag: str = "loss") -> list[tuple[int, float, float]]:
        """(step, value, time) of a training value: "loss", "lr", "rows_per_s" or a metric. Needs `set_tensorboard`."""
        return self._summary("train", tag)

    def get_validation_summary(self, tag: str = "loss") -> list[tuple[int, float, float]]:
        """(step, value, time) of a validation value. Needs `set_tensorboard`."""
        return self._summary("validation", tag)

    def _summary(self, kind: str, tag: str) -> list[tuple[int, float, float]]:
        if self._tensorboard is None:
            raise ArgumentError("There is no summary: call set_tensorboard(log_dir, app_name) before fit.")
        return list(self._tensorboard.summary(kind, tag))

    def _run_facts(self, plan: FitPlan) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "batch_size": plan.batch_size,
            "epochs": plan.last_epoch - plan.first_epoch if plan.last_epoch < plan.first_epoch + _ENDLESS else None,
            "config": dict(self.spec.config),
        }

    def _learned(self, with_optimizer: bool) -> dict[str, Any]:
        names = (
            "_state",
            "_position",
            "_example",
            "_scheduler",
            "_epoch",
            "_step",
            "_clip_norm",
            "_clip_value",
            "_tensorboard",
        )
        kept = {name: self.__dict__[name] for name in names}
        if self._state is not None:
            kept["_version"] = 1
            if not with_optimizer:
                kept["_state"] = {"model": self._state["model"]}
                kept["_position"] = None
        return kept

    def _fits(self, state: State | None) -> bool:
        """Whether learned weights still have a place in this model."""
        try:
            self.backend.framework.model(self.spec, state, self.seed)
        except Exception:
            return False
        return True

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None or self.backend.framework.inference_only

    def _form(
        self,
        feature_cols: Columns,
        label_cols: Columns,
        batch_size: int = 32,
        weights: Any = None,
        need_labels: bool | None = None,
    ) -> Form:
        framework = self.backend.framework
        inputs = framework.inputs(self.spec).count
        together = inputs is None or inputs == 1 or inputs != len(flat(feature_cols))
        if need_labels is None:
            need_labels = framework.needs_labels(self.spec)
        return Form(
            feature_cols=feature_cols,
            label_cols=label_cols,
            need_labels=need_labels,
            together=together,
            creator_arguments=framework.creator_arguments(self.spec.config, batch_size),
            weights=weights,
            triples=framework.triples,
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copy is another estimator: what the ranks hold of this one is not its.
        return {**self.__dict__, "_owner": uuid.uuid4().hex}

    def __repr__(self) -> str:
        return f"<Estimator: {self.backend.framework.name}, backend {self.backend.name}, {self.workers} workers>"


@contextmanager
def _borrowed(data: Any, y: Any, context: Context, form: Form) -> Iterator[XShards]:
    """The data as shards; what had to be copied for this call is freed after it, also if it fails."""
    if recognise(data) == "creator":
        data = created(data, form)
    shards = to_shards(data, y, context.engine, form)
    try:
        yield shards
    finally:
        if not (isinstance(shards, XShards) and shards.shares_parts(data)):
            shards.release()


__all__: Sequence[str] = ["Estimator"]
