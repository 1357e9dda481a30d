"""`Optimizer`: trains a layer until a trigger ends it."""

from __future__ import annotations

from typing import Any

from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.validation import Top1Accuracy
from orca.bigdl.running import as_methods, rows
from orca.callbacks.ending import EndCallback
from orca.context import workers_for
from orca.core.arguments import check_count, check_flag, check_limit, check_path, check_range, wrong
from orca.errors import ArgumentError
from orca.estimator import Estimator
from orca.loggers.summaries import Summary
from orca.optim_methods import LBFGS, SGD
from orca.triggers import EndTrigger, EveryEpoch, MaxEpoch, Progress, Trigger, as_end_trigger

ENDLESS = 2**31 - 1
"""Steps of a run that only its trigger ends."""


class Optimizer:
    """Trains a layer. Its weights are the trained ones after `optimize`.

    Epochs and steps of triggers count over all calls of `optimize`.

    Args:
        model: The layer.
        training_rdd: An RDD of Sample, (features, labels), XShards, or anything that `Estimator.fit` takes.
        criterion: The criterion.
        end_trigger: When the training ends, such as `MaxEpoch(2)`.
        batch_size: Rows of a step over all workers.
        optim_method: An optim method, SGD by default, or a dict of them by the names of layers.
        workers: Number of workers; by default all cores of the context, at most one per row of a batch.
        backend: The synchronization strategy, as for `Estimator.from_bigdl`; "torch_distributed" for `LBFGS`.
        seed: Seed of shuffling and dropout.
        feature_preprocessing: As for `Estimator.from_bigdl`, as is ``label_preprocessing``.
        feature_cols: Columns of features, as ``label_cols`` of labels.
    """

    def __init__(
        self, model: Layer, training_rdd: Any, criterion: Criterion, end_trigger: EndTrigger, batch_size: int,
        optim_method: Any = None, bigdl_type: str = "float", *, workers: int | None = None,
        backend: str | None = None, seed: int | None = None, feature_preprocessing: Any = None,
        label_preprocessing: Any = None, feature_cols: Any = None, label_cols: Any = None,
    ) -> None:  # fmt: skip
        self.batch_size = check_count("batch_size", batch_size)
        self._end = as_end_trigger("end_trigger", end_trigger)
        self._parts: dict[str, Any] = {"loss": criterion, "optimizer": SGD() if optim_method is None else optim_method}
        forms = {"feature_preprocessing": feature_preprocessing, "label_preprocessing": label_preprocessing}
        self._parts |= forms
        self._columns = {"feature_cols": feature_cols, "label_cols": label_cols}
        if backend is None:
            # The parameter server splits weights into slices; L-BFGS needs all of them.
            backend = "torch_distributed" if isinstance(optim_method, LBFGS) else "parameter_server"
        self._places: dict[str, Any] = {
            "workers": workers_for(self.batch_size, workers),
            "backend": backend,
            "seed": seed,
        }
        self.model = model
        self._data = rows(training_rdd)
        self._validation: dict[str, Any] = {}
        self._checkpoint: dict[str, Any] = {}
        self._folder: str | None = None
        self._methods: list[Any] = []
        self._clipping: dict[str, Any] = {}
        self._summaries: dict[str, Summary] = {}
        self._estimator: Estimator | None = None
        self._create()

    @staticmethod
    def create(
        model: Layer, training_set: Any, criterion: Criterion, end_trigger: EndTrigger | None = None,
        batch_size: int = 32, optim_method: Any = None, cores: int | None = None, bigdl_type: str = "float",
    ) -> Optimizer:  # fmt: skip
        """Create an optimizer of a layer.

        Args:
            model: The layer.
            training_set: An RDD of Sample, or arrays (features, labels), for which the optimizer is a LocalOptimizer.
            criterion: The criterion.
            end_trigger: When the training ends; by default after one epoch.
            batch_size: Rows of a step over all workers.
            optim_method: An optim method, or a dict of them by the names of layers; SGD by default.
            cores: Number of workers for arrays.
        """
        trigger = MaxEpoch(1) if end_trigger is None else end_trigger
        if isinstance(training_set, tuple) and len(training_set) == 2:
            return LocalOptimizer(*training_set, model, criterion, trigger, batch_size, optim_method, cores)
        return Optimizer(model, training_set, criterion, trigger, batch_size, optim_method, workers=cores)

    def _create(self) -> Estimator:
        """Create the estimator; what was learned so far is in the layer."""
        self._estimator = Estimator.from_bigdl(
            model=self.model, metrics=list(self._methods) or None, model_dir=self._folder, **self._parts, **self._places
        )
        return self._estimator

    @property
    def estimator(self) -> Estimator:
        """The estimator that trains."""
        assert self._estimator is not None
        return self._estimator

    def optimize(self) -> Layer:
        """Train until the trigger ends it; return the layer, which holds the trained weights."""
        est = self.estimator
        if self._end.ends(Progress(est.epoch, est.step)):
            return self.model
        trigger = self._end
        if trigger.needs_score and not self._methods:
            raise ArgumentError("MaxScore needs a validation method: call set_validation() first.")
        callbacks: list[Any] = list(self._summaries.values())
        if trigger.epochs is not None:
            length = {"epochs": trigger.epochs - est.epoch}
        elif trigger.steps is not None:
            length = {"max_steps": trigger.steps - est.step}
        else:
            length = {"max_steps": ENDLESS}
            callbacks.append(EndCallback(trigger, self._methods[0].name if self._methods else None))
        options = {**length, **self._validation, **self._clipping, **self._checkpoint, **self._columns}
        est.fit(self._data, batch_size=self.batch_size, callbacks=callbacks or None, **options)
        self.model.module.load_state_dict(est.get_model().module.state_dict())
        return self.model

    def set_validation(
        self, batch_size: int, val_rdd: Any, trigger: Trigger | None = None, val_method: Any = None
    ) -> Optimizer:
        """Validate during the training.

        Args:
            batch_size: Accepted; validation is exact over all rows, whatever their batches.
            val_rdd: The rows, in any form that the constructor takes.
            trigger: When, such as `EveryEpoch()` or `SeveralIteration(100)`.
            val_method: Validation methods; by default `[Top1Accuracy()]`. The first one is the score.
        """
        check_count("batch_size", batch_size)
        self._methods = as_methods("val_method", [Top1Accuracy()] if val_method is None else val_method)
        self._validation = {"validation_data": rows(val_rdd), "validation_trigger": trigger or EveryEpoch()}
        self._renew()
        return self

    def set_checkpoint(self, checkpoint_trigger: Trigger, checkpoint_path: str, isOverWrite: bool = True) -> Optimizer:
        """Write checkpoints, from which `Estimator.load_orca_checkpoint` continues.

        Args:
            checkpoint_trigger: When, such as `EveryEpoch()` or `SeveralIteration(100)`.
            checkpoint_path: The folder, on any fsspec path; each checkpoint is a folder of its own.
            isOverWrite: Accepted; a checkpoint of the same step is replaced.
        """
        if not isinstance(checkpoint_trigger, Trigger):
            raise wrong("checkpoint_trigger", checkpoint_trigger, "a trigger, such as EveryEpoch()")
        check_flag("isOverWrite", isOverWrite)
        self._folder = check_path("checkpoint_path", checkpoint_path, "the path of a folder")
        self._checkpoint = {"checkpoint_trigger": checkpoint_trigger}
        self._renew()
        return self

    def _renew(self) -> None:
        """Use other settings; the training continues with what was learned."""
        self.estimator.set_params(metrics=list(self._methods) or None, model_dir=self._folder)

    def set_gradclip_const(self, min_value: float, max_value: float) -> Optimizer:
        """Limit each value of the gradient to a range."""
        self._clipping["clip_value"] = check_range("(min_value, max_value)", (min_value, max_value))
        return self

    def set_gradclip_l2norm(self, clip_norm: float) -> Optimizer:
        """Limit the norm of the whole gradient."""
        self._clipping["clip_norm"] = check_limit("clip_norm", clip_norm)
        return self

    def disable_gradclip(self) -> Optimizer:
        """Clip no gradients."""
        self._clipping = {}
        return self

    def set_train_summary(self, summary: Summary) -> Optimizer:
        """Write the values of training with a `TrainSummary`."""
        return self._set_summary("train", summary)

    def set_val_summary(self, summary: Summary) -> Optimizer:
        """Write the values of validation with a `ValidationSummary`."""
        return self._set_summary("validation", summary)

    def _set_summary(self, split: str, summary: Summary) -> Optimizer:
        if not isinstance(summary, Summary) or summary.split != split:
            kind = "TrainSummary" if split == "train" else "ValidationSummary"
            raise wrong("summary", summary, f"{kind}(log_dir, app_name)")
        self._summaries[split] = summary
        return self

    def set_end_when(self, end_when: EndTrigger) -> Optimizer:
        """Set when the training ends."""
        self._end = as_end_trigger("end_when", end_when)
        return self

    def set_model(self, model: Layer) -> Optimizer:
        """Train another layer, from the beginning."""
        self.model = model
        self._create()
        return self

    def set_criterion(self, criterion: Criterion) -> Optimizer:
        """Set the criterion."""
        self._parts["loss"] = criterion
        self.estimator.set_params(loss=criterion)
        return self

    def set_traindata(self, training_rdd: Any, batch_size: int) -> Optimizer:
        """Train on other rows."""
        self._data, self.batch_size = rows(training_rdd), check_count("batch_size", batch_size)
        return self

    def prepare_input(self) -> None:
        """Do nothing: rows are read when the training starts."""


class LocalOptimizer(Optimizer):
    """An optimizer of arrays.

    Args:
        X: The features, an array or a list of arrays.
        Y: The labels.
        model: The layer.
        criterion: The criterion.
        end_trigger: When the training ends.
        batch_size: Rows of a step over all workers.
        optim_method: An optim method; SGD by default.
        cores: Number of workers; by default all cores of the context.
    """

    def __init__(
        self, X: Any, Y: Any, model: Layer, criterion: Criterion, end_trigger: EndTrigger | None = None,
        batch_size: int = 32, optim_method: Any = None, cores: int | None = None, bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        trigger = MaxEpoch(1) if end_trigger is None else end_trigger
        super().__init__(model, {"x": X, "y": Y}, criterion, trigger, batch_size, optim_method, workers=cores)

    def set_validation(  # type: ignore[override]
        self, batch_size: int, X_val: Any, Y_val: Any, trigger: Trigger | None = None, val_method: Any = None
    ) -> Optimizer:
        """Validate on arrays during the training; see `Optimizer.set_validation`."""
        return super().set_validation(batch_size, {"x": X_val, "y": Y_val}, trigger, val_method)


DistriOptimizer = Optimizer
"""BigDL's name of the optimizer of an RDD."""
