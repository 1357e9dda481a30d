"""The Estimator: what users hold. It keeps two values, its setup and what it has learned, and calls `orca.runs`."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orca import constructors
from orca.context import current
from orca.core.arguments import check_count, check_limit, check_range, check_text, known_arguments, optional
from orca.core.locks import OwnLock
from orca.runs import evaluate, params, predict, ranks, states, values
from orca.runs.fit import fit
from orca.shards.columns import Columns

if TYPE_CHECKING:
    from typing import Self

    from orca.backends.base import Backend, Spec
    from orca.history import History
    from orca.metrics import Metric


def _read_only(path: str, doc: str | None = None) -> Any:
    """Return a property for a field of the estimator's values."""
    return property(operator.attrgetter(path), doc=doc)


class Estimator:
    """Trains and runs a standard model on several workers. Create one with a ``from_*`` method.

    >>> import numpy as np, torch
    >>> est = Estimator.from_torch(model=torch.nn.Linear(2, 1), optimizer=torch.optim.SGD,
    ...                            loss=torch.nn.MSELoss(), config={"lr": 0.1}, workers=1, seed=1)
    >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> history = est.fit(x, x.sum(axis=1), epochs=200, batch_size=4)
    >>> bool(history["loss"][-1] < 1e-3)
    True
    """

    def __init__(self, setup: values.Setup, learned: values.Learned, recipe: params.Recipe | None = None) -> None:
        self._setup = setup
        self._learned = learned
        self._recipe = recipe or params.Recipe()
        self._preferences = values.Preferences()
        self._cache = predict.PredictionCache()
        self._learning = OwnLock()

    from_backend = classmethod(constructors.from_backend)
    from_torch = classmethod(constructors.from_torch)
    from_keras = classmethod(constructors.from_keras)
    from_mxnet = classmethod(constructors.from_mxnet)
    from_graph = classmethod(constructors.from_graph)
    from_bigdl = classmethod(constructors.from_bigdl)
    from_openvino = classmethod(constructors.from_openvino)

    backend: Backend[Any] = _read_only("_setup.backend")
    spec: Spec = _read_only("_setup.spec")
    workers: int = _read_only("_setup.workers")
    metrics: Sequence[Metric] = _read_only("_setup.metrics")
    model_dir: str | None = _read_only("_setup.model_dir")
    epochs: int = _read_only("_setup.epochs")
    batch_size: int = _read_only("_setup.batch_size")
    seed: int = _read_only("_learned.seed")
    epoch: int = _read_only("_learned.epoch", "Epochs done, an interrupted one included.")
    step: int = _read_only("_learned.step", "Steps done, over all fits.")

    @known_arguments
    def fit(
        self, data: Any, y: Any = None, *,
        epochs: int | None = None, batch_size: int | None = None, max_steps: int | None = None,
        validation_data: Any = None, validation_freq: int = 1, validation_steps: int | None = None,
        validation_trigger: Any = None,
        steps_per_epoch: int | None = None, callbacks: Any = None,
        feature_cols: Columns = None, label_cols: Columns = None,
        sample_weight: Any = None, class_weight: Mapping[int, float] | None = None,
        shuffle: bool | str = True, accumulate: int = 1,
        clip_norm: float | None = None, clip_value: float | tuple[float, float] | None = None,
        checkpoint_trigger: Any = None, initial_epoch: int | None = None,
        resume: bool | str = False, max_failures: int = 0, min_workers: int | None = None,
        terminate_on_nan: bool = True,
        progress: bool | None = None, verbose: int | str | None = None, train_resize_batch_num: int | None = None,
    ) -> History:  # fmt: skip
        """Train for some epochs; a further fit continues from there.

        Args:
            data: Features ``x`` with labels ``y`` beside them, ``(x, y)``, ``{"x": …, "y": …}``, an XShards, anything
                with columns (pandas, Spark, Ray, Arrow, polars, DuckDB), a torch or tf.data dataset, a generator
                function, or a creator ``fn(config, batch_size)`` that returns one of these.
            epochs: Number of epochs; ``max_steps`` ends the run after that many steps, ``steps_per_epoch`` each epoch.
            batch_size: Rows of a step over all workers; ``accumulate=k`` computes them in k pieces.
            shuffle: True so that each worker needs only its part of the rows, "global" for a permutation of all rows,
                False for the stored order.
            validation_data: Scored after every ``validation_freq`` epochs, at most ``validation_steps`` batches; or
                when ``validation_trigger``, such as ``SeveralIteration(100)``, is due, and at the end.
            feature_cols: Columns of features, as ``label_cols`` of labels.
            sample_weight: Weights of rows, an array or a column; ``class_weight`` has weights by class.
            clip_norm: Limit of the whole gradient's norm; ``clip_value`` limits each of its values.
            callbacks: Callbacks, loggers, or callbacks of the framework.
            checkpoint_trigger: When to write a checkpoint to ``model_dir``, see `orca.triggers`.
            resume: A checkpoint's path, or True for the newest; the run continues bit for bit, also within an epoch.
            max_failures: How often a failed run restarts from its last checkpoint.
            min_workers: Restart with fewer workers, down to this number, if the cluster has lost some; add workers
                again before an epoch for which it has room. The result is the same up to rounding.
            initial_epoch: Epochs that count as done; the run then ends with epoch ``epochs``.
            progress: Show a progress bar (by default on terminals and in notebooks); ``verbose`` is Keras' name for it.
            train_resize_batch_num: Accepted for BigDL compatibility; ignored.

        Returns:
            The History of the run, one record per epoch.
        """
        y, epochs = values.labels_and_epochs(y, epochs)
        optional(check_count)("train_resize_batch_num", train_resize_batch_num)
        clip = check_range("clip_value", clip_value)
        return self._fit(values.FitRequest(
            values.RowsRequest(data, y, feature_cols, label_cols, sample_weight),
            values.Length(epochs, max_steps, steps_per_epoch, initial_epoch),
            values.StepRequest(batch_size, shuffle, accumulate, clip_norm, clip, class_weight, terminate_on_nan),
            values.Validation(validation_data, validation_freq, validation_steps, validation_trigger),
            values.Recovery(checkpoint_trigger, resume, max_failures, min_workers),
            callbacks, values.Display(progress, verbose), self._preferences,
        ))  # fmt: skip

    def _fit(self, request: values.FitRequest) -> History:
        with self._learning:  # another thread's fit continues from the result of this one
            try:
                self._learned, history, error = fit(self._setup, self._learned, request, current())
            except BaseException:
                # A later state may have reached ranks under the next version's number.
                self._learned = self._learned.with_new_owner()
                raise
            states.deliver(self._setup, self._learned)
        if error is not None:
            raise error
        return history

    @known_arguments
    def evaluate(
        self, data: Any, y: Any = None, *, batch_size: int = 256,
        feature_cols: Columns = None, label_cols: Columns = None, sample_weight: Any = None,
    ) -> dict[str, float]:  # fmt: skip
        """Return loss and metrics over all rows, exactly as one process would; arguments are those of `fit`."""
        request = values.RowsRequest(data, y, feature_cols, label_cols, sample_weight)
        return evaluate.evaluate(self._setup, self._learned, request, batch_size, current())

    @known_arguments
    def score(
        self, data: Any, y: Any = None, *, batch_size: int = 256,
        feature_cols: Columns = None, label_cols: Columns = None, sample_weight: Any = None,
    ) -> float:  # fmt: skip
        """Return one number, the greater the better: the first metric (an error with its sign turned).

        Without metrics it is the accuracy of a classifier and R² of anything else.
        """
        request = values.RowsRequest(data, y, feature_cols, label_cols, sample_weight)
        return evaluate.score(self._setup, self._learned, request, batch_size, current())

    @known_arguments
    def predict(
        self, data: Any, *, batch_size: int | None = None, feature_cols: Columns = None,
        output_cols: str | Sequence[str] | None = None, accelerator: str | None = None,
    ) -> Any:  # fmt: skip
        """Return the model's outputs in the kind of the data, row by row.

        Args:
            data: Anything that `fit` takes. Data with columns comes back with ``prediction`` added to each row;
                XShards and Spark DataFrames are computed when needed.
            batch_size: Rows that the model gets at once: 256, or for OpenVINO what suits its inputs.
            feature_cols: Columns to read.
            output_cols: Names for the outputs.
            accelerator: "openvino" converts a torch, Keras or MXNet model first, once for each state, and compares both
                on the first rows (up to 32): they may differ by 1e-3 of a value plus 1e-4.
        """
        request = values.PredictRequest(data, batch_size, feature_cols, output_cols, accelerator)
        return predict.predict(self._setup, self._learned, request, current(), self._cache)

    def quantize(
        self, calibration_data: Any, *, feature_cols: Columns = None, rows: int = 300,
        preset: str = "mixed", config: dict[str, Any] | None = None, **options: Any,
    ) -> Self:  # fmt: skip
        """Return an OpenVINO estimator of this model in int8, by NNCF's post-training quantization.

        Args:
            calibration_data: Anything that `predict` takes, with typical rows; the first ``rows`` are used.
            preset: "mixed" or "performance" (coarser, faster).
            config: As for `from_openvino`.
            options: Arguments of ``nncf.quantize``.
        """
        sample = predict.sample_of(self._setup, calibration_data, feature_cols, check_count("rows", rows), current())
        setup = predict.quantized(self._setup, self._learned, sample, preset, config, options, self._cache)
        return type(self)(setup, values.Learned.nothing(setup, None))

    def explain(self) -> str:
        """Describe what will run where, before anything starts."""
        return ranks.explain(self._setup, self._learned, current())

    def shutdown(self) -> None:
        """End the worker processes of this estimator's size; the next call starts new ones."""
        setup = self._setup
        current().stop_gang(setup.topology.ranks, setup.preload, setup.servers, setup.resources)

    def get_model(self) -> Any:
        """Return the model as an object of its framework, with the weights learned so far."""
        return states.model_of(self._setup, self._learned)

    def get_state_dict(self) -> dict[str, Any]:
        """Return the weights learned so far, in the framework's own form."""
        return self._setup.backend.framework.state_dict(states.fitted_state(self._learned))

    def export(self, kind: str, path: str, example: Any = None) -> str:
        """Write the model for other programs: "onnx", "openvino", "torchscript" or "exported_program".

        ``example`` is a few rows of input; by default rows like those of the last fit. Returns the path.
        """
        return states.export(self._setup, self._learned, kind, path, example)

    def save(self, path: str) -> str:
        """Save weights, optimizer and position to a folder on any fsspec path; return the path.

        A path with a suffix of the framework's own format (``.keras``, ``.h5``; OpenVINO: ``.xml``) gets such a file.
        """
        return states.save(self._setup, self._learned, path)

    def load(self, path: str, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Load what `save` or a checkpoint holds; a Keras file may name functions and classes of `custom_objects`."""
        with self._learning:
            self._learned = states.load(self._setup, self._learned, path, custom_objects)
            states.deliver(self._setup, self._learned)
            states.restore_callbacks(self._setup.callbacks, self._learned.position)
        return self

    save_checkpoint = save
    load_checkpoint = load

    def load_orca_checkpoint(self, path: str, version: int | None = None, prefix: str | None = None) -> Self:
        """Load the newest checkpoint below a folder, or with ``version`` the one of that step."""
        optional(check_text)("prefix", prefix)
        return self.load(states.newest(path, version))

    def save_weights(self, path: str) -> str:
        """Save the weights alone; return the path."""
        return states.save_weights(self._setup, self._learned, path)

    def load_weights(self, path: str) -> Self:
        """Load the weights alone, from a file or folder of `save` or `save_weights`."""
        with self._learning:
            self._learned = states.load_weights(self._setup, self._learned, path)
        return self

    def save_tf_checkpoint(self, path: str) -> str:
        """Write a TensorFlow graph's variables as a checkpoint of TensorFlow, for its Saver; return the path."""
        return states.save_tf_checkpoint(self._setup, self._learned, path)

    def load_tf_checkpoint(self, path: str) -> Self:
        """Load the variables of a TensorFlow graph from a checkpoint of TensorFlow, or the newest one of a folder."""
        with self._learning:
            self._learned = states.load_tf_checkpoint(self._setup, self._learned, path)
            states.deliver(self._setup, self._learned)
        return self

    @property
    def sess(self) -> Any:
        """A TensorFlow graph's session with the learned values: the user's own, or one on the user's graph."""
        return states.session_of(self._setup, self._learned)

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Limit the norm of the whole gradient in all further fits."""
        self._preferences = replace(self._preferences, clip_norm=check_limit("clip_norm", clip_norm))

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Limit each value of the gradient to this range in all further fits."""
        self._preferences = replace(self._preferences, clip_value=check_range("(min, max)", (min, max)))

    def clear_gradient_clipping(self) -> None:
        """Clip no gradients in further fits."""
        self._preferences = replace(self._preferences, clip_norm=None, clip_value=None)

    def set_tensorboard(self, log_dir: str, app_name: str = "") -> None:
        """Write all further fits to TensorBoard files below ``log_dir/app_name``."""
        self._preferences = self._preferences.with_tensorboard(log_dir, app_name)

    def get_train_summary(self, tag: str = "loss") -> list[tuple[int, float, float]]:
        """Return (step, value, time) of "loss", "lr", "rows_per_s" or a metric. Needs `set_tensorboard`."""
        return self._preferences.summary("train", tag)

    def get_validation_summary(self, tag: str = "loss") -> list[tuple[int, float, float]]:
        """Return (step, value, time) of a validation value. Needs `set_tensorboard`."""
        return self._preferences.summary("validation", tag)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters; with `deep` also the entries of ``config``, as ``config__<name>``."""
        return self._recipe.all_params(deep)

    def set_params(self, **changes: Any) -> Self:
        """Change parameters. What was learned stays, unless it belongs to another model or optimizer."""
        if changes:
            fresh = self._recipe.changed(changes, self.backend).create(type(self))
            names = {name.partition("__")[0] for name in changes}
            old, new = (self._setup, self._learned), (fresh._setup, fresh._learned)
            self._setup, self._learned = params.after_change(names, *old, *new)
            self._recipe = fresh._recipe
        return self

    def __sklearn_clone__(self) -> Self:
        # Parameters are copied in one piece: an optimizer object has to stay bound to its model.
        return copy.deepcopy(self._recipe).create(type(self))

    def __sklearn_tags__(self) -> Any:
        return params.tags()

    def __sklearn_is_fitted__(self) -> bool:
        return self._learned.state is not None or self.backend.framework.inference_only

    def __getstate__(self) -> dict[str, Any]:
        # A copy gets a new identity, so that ranks never reuse this estimator's replica for it.
        return {**self.__dict__, "_learned": self._learned.with_new_owner()}

    def __repr__(self) -> str:
        return f"<Estimator: {self.backend.framework.name}, backend {self.backend.name}, {self.workers} workers>"


__all__ = ["Estimator"]
