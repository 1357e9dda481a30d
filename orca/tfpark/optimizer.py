"""`TFOptimizer`: trains the variables behind a loss on the rows of a `TFDataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as v1

from orca.callbacks.ending import EndCallback
from orca.context import workers_for
from orca.core.arguments import check_range, wrong
from orca.errors import ArgumentError
from orca.estimator import Estimator
from orca.shards.tree import leaves
from orca.tfpark.dataset import TFDataset, dataset_behind
from orca.tfpark.keras_model import KerasModel
from orca.tfpark.optim import ValidationMethod
from orca.tfpark.zoo_optimizer import optimizer_behind
from orca.triggers import EndTrigger, EveryEpoch, MaxEpoch, Progress

_ENDLESS = 2**31 - 1


class TFOptimizer:
    """Trains a loss built from `TFDataset.tensors`; `sess` then holds the trained values.

    Args:
        loss: A scalar tensor, the mean over the rows.
        optim_method: An optimizer of ``tf.train`` or `orca.tfpark.optim`, or a dict of them by prefix of names.
        sess: A session with values to begin with, which receives the trained ones.
        dataset: The rows; by default the dataset whose placeholders the loss depends on.
        inputs: The placeholders of the features, with ``labels``; by default those of the dataset.
        val_outputs: Outputs for ``val_method``, with ``val_labels``; validated on the dataset's validation rows.
        val_split: Share of the dataset's rows that are used for validation, if it has no validation rows.
        metrics: Further metrics, as for `Estimator.from_graph`.
        tensors_with_value: Values of other placeholders: (value in training, value in validation).
        updates: Operations that run in each step.
        model_dir: Folder for checkpoints.
        workers: Number of workers; by default all cores of the context.
    """

    def __init__(
        self, loss: Any, optim_method: Any, sess: Any = None, dataset: TFDataset | None = None, inputs: Any = None,
        val_outputs: Sequence[Any] | None = None, val_labels: Sequence[Any] | None = None, val_method: Any = None,
        val_split: float = 0.0, tensors_with_value: Mapping[Any, Any] | None = None, session_config: Any = None, *,
        labels: Any = None, metrics: Mapping[str, Any] | None = None, updates: Sequence[Any] | None = None,
        clip_norm: float | None = None, clip_value: Any = None, model_dir: str | None = None,
        workers: int | None = None, seed: int | None = None, backend: str = "multiworker",
    ) -> None:  # fmt: skip
        del session_config
        self.dataset = dataset_behind(loss, dataset, "loss")
        if self.dataset.batch_per_thread is not None:
            raise ArgumentError("You should set batch_size instead of batch_per_thread for training.")
        self._rows = self.dataset.split(val_split, seed) if val_split else self.dataset.parts
        features, own_labels = self.dataset.placeholders
        all_metrics = _validation_metrics(val_method, val_outputs, val_labels, loss) | dict(metrics or {})
        self._score = next(iter(all_metrics), None)
        self._summaries: list[Any] = []
        self._trainer = Estimator.from_graph(
            inputs=features if inputs is None else inputs,
            outputs=None if not val_outputs else list(val_outputs),
            labels=own_labels if labels is None else labels,
            loss=loss,
            optimizer=optim_method,
            metrics=all_metrics or None,
            clip_norm=clip_norm,
            clip_value=clip_value,
            updates=None if updates is None else list(updates),
            sess=sess,
            feed_dict=tensors_with_value,
            model_dir=model_dir,
            workers=workers_for(self.dataset.batch_size, workers),
            seed=seed,
            backend=backend,
        )

    @classmethod
    def from_loss(
        cls, loss: Any, optim_method: Any, session: Any = None, inputs: Any = None, dataset: TFDataset | None = None,
        tensor_with_value: Mapping[Any, Any] | None = None, **more: Any,
    ) -> TFOptimizer:  # fmt: skip
        """Create an optimizer of a loss; the arguments are those of the constructor."""
        return cls(loss, optim_method, session, dataset, inputs, tensors_with_value=tensor_with_value, **more)

    @classmethod
    def from_train_op(
        cls, train_op: Any, loss: Any, *, inputs: Any = None, labels: Any = None, metrics: Any = None,
        updates: Sequence[Any] | None = None, sess: Any = None, dataset: TFDataset | None = None,
        tensor_with_value: Mapping[Any, Any] | None = None, session_config: Any = None, **more: Any,
    ) -> TFOptimizer:  # fmt: skip
        """Create an optimizer of a train operation, which a `ZooOptimizer` has created.

        Its gradients may have been changed between ``compute_gradients`` and ``apply_gradients``. The other arguments
        are those of the constructor.
        """
        method = optimizer_behind(train_op)
        options = {"metrics": metrics, "updates": updates, "labels": labels, **more}
        return cls(loss, method, sess, dataset, inputs, tensors_with_value=tensor_with_value, **options)

    @classmethod
    def from_keras(
        cls, keras_model: Any, dataset: TFDataset, session_config: Any = None, model_dir: str | None = None,
        metrics: Any = None, optimizer: Any = None, **more: Any,
    ) -> TFKerasOptimizer:  # fmt: skip
        """Create an optimizer of a compiled Keras model, with the methods of this class."""
        del session_config
        if metrics is not None or optimizer is not None:
            raise ArgumentError("metrics= and optimizer= are not supported: compile the Keras model with them.")
        return TFKerasOptimizer(keras_model, dataset, model_dir, **more)

    @property
    def estimator(self) -> Estimator:
        """The estimator that trains."""
        return self._trainer

    @property
    def sess(self) -> Any:
        """The session with the trained values."""
        return self._trainer.sess

    def optimize(self, end_trigger: EndTrigger | None = None, checkpoint_trigger: Any = None) -> Any:
        """Train until a trigger ends it, by default after one epoch; return the History, or None if it has ended.

        Args:
            end_trigger: `MaxEpoch`, `MaxIteration`, `MinLoss`, `MaxScore`, `TriggerAnd` or `TriggerOr`; epochs and
                steps count over all calls.
            checkpoint_trigger: When to write a checkpoint to ``model_dir``; by default after each epoch.
        """
        trigger, est = end_trigger or MaxEpoch(1), self._trainer
        if not isinstance(trigger, EndTrigger):
            raise wrong("end_trigger", trigger, "a trigger, such as MaxEpoch(5)")
        if trigger.needs_score and (self._score is None or self._rows.validation is None):
            raise ArgumentError("MaxScore needs a validation metric: give val_method= and validation rows.")
        if trigger.ends(Progress(est.epoch, est.step)):
            return None
        length: dict[str, Any] = {"max_steps": _ENDLESS}
        callbacks = list(self._summaries)
        if trigger.epochs is not None:
            length = {"epochs": trigger.epochs - est.epoch}
        elif trigger.steps is not None:
            length = {"max_steps": trigger.steps - est.step}
        else:
            callbacks.append(EndCallback(trigger, self._score))
        if est.model_dir is not None:
            length["checkpoint_trigger"] = checkpoint_trigger or EveryEpoch()
        return est.fit(
            self._rows.data,
            batch_size=self.dataset.batch_size,
            shuffle=self.dataset.shuffle,
            validation_data=self._rows.validation,
            callbacks=callbacks or None,
            **self._rows.columns,
            **length,
        )

    def set_train_summary(self, summary: Any) -> None:
        """Write the values of training with a `TrainSummary`."""
        self._summaries = [*self._summaries, summary]

    set_val_summary = set_train_summary

    def set_constant_gradient_clipping(self, min_value: float, max_value: float) -> None:
        """Limit each value of the gradient to a range."""
        low, high = check_range("(min_value, max_value)", (min_value, max_value)) or (0.0, 0.0)
        self._trainer.set_constant_gradient_clipping(low, high)

    def set_gradient_clipping_by_l2_norm(self, clip_norm: float) -> None:
        """Limit the norm of the whole gradient."""
        self._trainer.set_l2_norm_gradient_clipping(clip_norm)

    def load_checkpoint(self, path: str, version: int | None = None) -> None:
        """Load the newest checkpoint below a folder, or the one of a step."""
        self._trainer.load_orca_checkpoint(path, version)


class TFKerasOptimizer(TFOptimizer):
    """Trains a compiled Keras model on a `TFDataset`."""

    def __init__(
        self, model: Any, dataset: TFDataset, model_dir: str | None = None, workers: int | None = None,
        seed: int | None = None,
    ) -> None:  # fmt: skip
        self.dataset, self._summaries, self._score = dataset, [], None
        self._rows = dataset.parts
        self._model = KerasModel(model, model_dir, workers=workers_for(dataset.batch_size, workers), seed=seed)
        self._trainer = self._model.estimator

    def optimize(self, end_trigger: EndTrigger | None = None, checkpoint_trigger: Any = None) -> Any:
        history = super().optimize(end_trigger, checkpoint_trigger)
        self._model.take_weights()
        return history


def _validation_metrics(method: Any, outputs: Any, labels: Any, loss: Any) -> dict[str, Any]:
    methods = [] if method is None else list(method) if isinstance(method, list | tuple) else [method]
    if methods and not (outputs and labels):
        raise ArgumentError("val_method= needs val_outputs= and val_labels=, the tensors that it compares.")
    found: dict[str, Any] = {}
    for one in methods:
        if not isinstance(one, ValidationMethod):
            raise ArgumentError(f"val_method={one!r}: expected Top1Accuracy(), Top5Accuracy(), Loss() or MAE().")
        with loss.graph.as_default(), v1.name_scope("orca_validation"):
            output, label = (next(tensor for _, tensor in leaves(tree)) for tree in (outputs, labels))
            found[one.name] = one.tensor(output, label, loss)
    return found
