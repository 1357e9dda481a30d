"""compile, fit, evaluate and predict of models in the style of Keras 1."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from orca.backends.bigdl.keras_losses import as_criterion
from orca.backends.bigdl.layer import Layer
from orca.context import workers_for
from orca.core.arguments import check_count, check_flag, check_limit, check_number, check_range, shown
from orca.errors import ArgumentError, suggest
from orca.estimator import Estimator
from orca.optim_methods import SGD, Adadelta, Adagrad, Adam, Adamax, OptimMethod, RMSprop
from orca.triggers import EveryEpoch, Trigger

OPTIMIZERS: dict[str, Callable[[], OptimMethod]] = {
    "sgd": lambda: SGD(0.01),
    "adam": Adam,
    "rmsprop": lambda: RMSprop(0.001, decayrate=0.9),
    "adagrad": lambda: Adagrad(0.01),
    "adadelta": lambda: Adadelta(0.95, 1e-8),
    "adamax": lambda: Adamax(epsilon=1e-8),
}
"""Optim methods by the names and with the defaults of Keras 1."""

_estimators: weakref.WeakKeyDictionary[Layer, Estimator] = weakref.WeakKeyDictionary()
"""The estimators of compiled models. They are not part of a model, which can be copied and saved."""


class Training:
    """What a compiled model does with data. After `fit` the model holds the trained weights."""

    _compiled: dict[str, Any] | None = None
    _folder: str | None = None
    _trigger: Trigger | None = None

    def compile(self, optimizer: Any, loss: Any, metrics: Any = None) -> None:
        """Set how the model is trained.

        Args:
            optimizer: An optim method, or "sgd", "adam", "rmsprop", "adagrad", "adadelta" or "adamax".
            loss: A criterion, or the name of a loss in Keras, such as "sparse_categorical_crossentropy".
            metrics: Metrics by name, such as ["accuracy"], validation methods, or metrics of `orca.metrics`.
        """
        self._compiled = {"optimizer": _method(optimizer), "loss": as_criterion(loss), "metrics": metrics}
        self._create()

    def _create(self) -> Estimator:
        if self._compiled is None:
            raise ArgumentError("The model is not compiled: call compile(optimizer, loss) first.")
        assert isinstance(self, Layer)
        est = Estimator.from_bigdl(model=self, model_dir=self._folder, workers=workers_for(None), **self._compiled)
        _estimators[self] = est
        return est

    @property
    def estimator(self) -> Estimator:
        """The estimator that trains this model."""
        assert isinstance(self, Layer)
        return _estimators.get(self) or self._create()

    def fit(
        self, x: Any, y: Any = None, batch_size: int = 32, nb_epoch: int = 10, validation_split: float = 0.0,
        validation_data: Any = None, distributed: bool = True, feature_cols: Any = None, label_cols: Any = None,
        transform: Any = None,
    ) -> Any:  # fmt: skip
        """Train; a further fit continues. Return the History.

        Args:
            x: Features with labels `y` beside them, or anything that `Estimator.fit` takes.
            y: The labels.
            batch_size: Rows of a step over all workers.
            nb_epoch: Number of epochs.
            validation_split: The share of rows at the end of arrays that is not trained on, but validated on.
            validation_data: Rows to validate on after every epoch.
            distributed: Accepted; all cores of the context are used.
            feature_cols: Columns of features, as `label_cols` of labels.
            transform: Not supported.
        """
        if transform is not None:
            raise ArgumentError(f"transform={shown(transform)} is not supported: transform the data before fit.")
        check_flag("distributed", distributed)
        count = check_count("batch_size", batch_size)
        x, y, rest = _split(x, y, validation_split)
        if rest is not None and validation_data is not None:
            raise ArgumentError("Give one of validation_split= and validation_data=, not both.")
        validation = rest if rest is not None else validation_data
        est = self.estimator
        est.set_params(workers=workers_for(count))
        options: dict[str, Any] = {"feature_cols": feature_cols, "label_cols": label_cols}
        if self._trigger is not None:
            options["checkpoint_trigger"] = self._trigger
        history = est.fit(x, y, epochs=nb_epoch, batch_size=count, validation_data=validation, **options)
        assert isinstance(self, Layer)
        self.module.load_state_dict(est.get_model().module.state_dict())
        return history

    def _current(self) -> Estimator:
        """Return an estimator with the weights that the model holds now."""
        compiled = self._compiled or {}
        return Estimator.from_bigdl(model=self, loss=compiled.get("loss"), metrics=compiled.get("metrics"))

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int = 32, feature_cols: Any = None, label_cols: Any = None,
    ) -> Any:  # fmt: skip
        """Return the loss and the metrics as a list; without data, set evaluation mode.

        Args:
            x: Features with labels `y` beside them, or anything that `Estimator.evaluate` takes.
            y: The labels.
            batch_size: Rows that are computed at once over all workers.
            feature_cols: Columns of features, as `label_cols` of labels.
        """
        if x is None:
            assert isinstance(self, Layer)
            self.module.eval()
            return self
        if self._compiled is None:
            raise ArgumentError("The model is not compiled: call compile(optimizer, loss) first.")
        est = self._current()
        est.set_params(workers=workers_for(check_count("batch_size", batch_size)))
        scores = est.evaluate(x, y, batch_size=batch_size, feature_cols=feature_cols, label_cols=label_cols)
        return list(scores.values())

    def predict(
        self, x: Any, batch_per_thread: int = 4, distributed: bool = True, feature_cols: Any = None,
        prediction_col: str | None = None,
    ) -> Any:  # fmt: skip
        """Return the outputs in the kind of the data: arrays for arrays, an RDD for an RDD.

        Args:
            x: Anything that `Estimator.predict` takes.
            batch_per_thread: Accepted; rows are computed in batches of 256.
            distributed: Accepted.
            feature_cols: Columns of features.
            prediction_col: The name of the column of predictions.
        """
        check_count("batch_per_thread", batch_per_thread)
        check_flag("distributed", distributed)
        return self._current().predict(x, feature_cols=feature_cols, output_cols=prediction_col)

    def predict_classes(self, x: Any, batch_per_thread: int = 4, zero_based_label: bool = True) -> Any:
        """Return the class of each row, counted from 0, or from 1 with ``zero_based_label=False``."""
        first = 0 if check_flag("zero_based_label", zero_based_label) else 1
        outputs = self.predict(x, batch_per_thread)
        if isinstance(outputs, np.ndarray):
            return outputs.argmax(axis=-1) + first
        if hasattr(outputs, "mapPartitions"):
            return outputs.map(lambda scores: int(np.argmax(scores)) + first)
        raise ArgumentError(f"x={shown(x)}: predict_classes takes arrays and RDDs; use predict.")

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Write further fits to TensorBoard files below ``log_dir/app_name``."""
        self.estimator.set_tensorboard(log_dir, app_name)

    def get_train_summary(self, tag: str) -> Any:
        """Return (step, value, time) of a value of training, such as "Loss", as an array."""
        return np.array(self.estimator.get_train_summary(tag))

    def get_validation_summary(self, tag: str) -> Any:
        """Return (step, value, time) of a value of validation as an array."""
        return np.array(self.estimator.get_validation_summary(tag))

    def set_checkpoint(self, path: str, over_write: bool = True) -> None:
        """Write a checkpoint after every epoch, below a folder."""
        check_flag("over_write", over_write)
        self._folder, self._trigger = path, EveryEpoch()
        self.estimator.set_params(model_dir=path)

    def set_gradient_clipping_by_l2_norm(self, clip_norm: float) -> None:
        """Limit the norm of the whole gradient."""
        limit = check_limit("clip_norm", clip_norm)
        assert limit is not None
        self.estimator.set_l2_norm_gradient_clipping(limit)

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Limit each value of the gradient to a range."""
        check_range("(min, max)", (min, max))
        self.estimator.set_constant_gradient_clipping(min, max)

    def clear_gradient_clipping(self) -> None:
        """Clip no gradients."""
        self.estimator.clear_gradient_clipping()


def _method(optimizer: Any) -> Any:
    if isinstance(optimizer, OptimMethod | dict):
        return optimizer
    if isinstance(optimizer, str) and optimizer.lower() in OPTIMIZERS:
        return OPTIMIZERS[optimizer.lower()]()
    hint = suggest(optimizer.lower(), OPTIMIZERS) if isinstance(optimizer, str) else ""
    raise ArgumentError(f"optimizer={shown(optimizer)}: expected an optim method or {', '.join(OPTIMIZERS)}.{hint}")


def _split(x: Any, y: Any, share: float) -> tuple[Any, Any, Any]:
    """Return the rows to train on, and those at the end to validate on."""
    number = check_number("validation_split", share, 0, "a number from 0 to 1")
    if not number:
        return x, y, None
    arrays = list(x) if isinstance(x, list | tuple) else [x]
    if number >= 1 or not isinstance(y, np.ndarray) or not all(isinstance(part, np.ndarray) for part in arrays):
        raise ArgumentError(f"validation_split={shown(share)} is for arrays x and y, and below 1.")
    cut = int(len(y) * (1 - number))
    front, back = [part[:cut] for part in arrays], [part[cut:] for part in arrays]
    single = not isinstance(x, list | tuple)
    return (front[0] if single else front), y[:cut], {"x": back[0] if single else back, "y": y[cut:]}
