"""`NNEstimator` and `NNModel`: stages of pyspark.ml that train and run layers on Spark DataFrames."""

from __future__ import annotations

import copy
from typing import Any, Self

from pyspark.ml import Estimator, Model
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from orca import estimator
from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.preprocessing import FeatureLabelPreprocessing, Preprocessing, as_preprocessing
from orca.bigdl.nnframes.files import read_model, write_model
from orca.bigdl.nnframes.params import HasBatchSize, HasColumns, TrainingParams
from orca.bigdl.optim.training import Optimizer
from orca.core.arguments import wrong
from orca.errors import ArgumentError
from orca.optim_methods import SGD, OptimMethod
from orca.triggers import EndTrigger, MaxEpoch, Trigger, as_end_trigger


class NNEstimator(TrainingParams, Estimator):  # type: ignore[misc]
    """Trains a layer on the columns of a Spark DataFrame; `fit` returns an `NNModel`.

    Args:
        model: The layer. It stays as it is.
        criterion: The criterion.
        feature_preprocessing: The size of a row of features, such as ``[28, 28]``, or a Preprocessing.
        label_preprocessing: The same for labels.
        workers: Number of workers; by default all cores of the context.
        seed: Seed of shuffling and dropout.
    """

    def __init__(
        self, model: Layer, criterion: Criterion, feature_preprocessing: Any = None, label_preprocessing: Any = None,
        jvalue: Any = None, bigdl_type: str = "float", *, workers: int | None = None, seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(model, Layer):
            raise wrong("model", model, "a layer, such as Sequential().add(Linear(4, 2))")
        if not isinstance(criterion, Criterion):
            raise wrong("criterion", criterion, "a criterion, such as MSECriterion()")
        self._setDefault(batchSize=1, maxEpoch=50, learningRate=1e-3, learningRateDecay=0.0, cachingSample=True)
        self.model, self.criterion = model, criterion
        both = feature_preprocessing if isinstance(feature_preprocessing, FeatureLabelPreprocessing) else None
        self.feature_preprocessing = as_preprocessing(
            "feature_preprocessing", both.feature_transformer if both else feature_preprocessing
        )
        self.label_preprocessing = as_preprocessing(
            "label_preprocessing", both.label_transformer if both else label_preprocessing
        )
        self._places: dict[str, Any] = {"workers": workers, "seed": seed}
        self._method: OptimMethod | None = None
        self._end: EndTrigger | None = None
        self._validation: tuple[Any, ...] | None = None
        self._checkpoint: tuple[Any, ...] | None = None
        self._clipping: dict[str, Any] = {}
        self.train_summary: Any = None
        self.validation_summary: Any = None

    def setOptimMethod(self, val: OptimMethod) -> Self:
        """Set the optim method; SGD by default."""
        if not isinstance(val, OptimMethod):
            raise wrong("val", val, "an optim method, such as Adam()")
        self._method = val
        return self

    def getOptimMethod(self) -> OptimMethod:
        """Return the optim method, with the learning rate that was set."""
        method = copy.copy(self._method) if self._method is not None else SGD()
        if self._method is None or self.isSet(self.learningRate):
            method.learningrate = self.getLearningRate()
        if self.isSet(self.learningRateDecay):
            method.learningrate_decay = self.getLearningRateDecay()
        return method

    def setEndWhen(self, trigger: EndTrigger) -> Self:
        """Set when the training ends, in place of a number of epochs."""
        self._end = as_end_trigger("trigger", trigger)
        return self

    def getEndWhen(self) -> EndTrigger | None:
        """Return when the training ends, if it was set."""
        return self._end

    def setDataCacheLevel(self, level: str, numSlice: int | None = None) -> Self:
        """Accept where rows are cached: ranks store their own part."""
        return self

    def setValidation(self, trigger: Trigger, val_df: Any, val_method: Any, batch_size: int) -> Self:
        """Validate during the training on another DataFrame with the same columns.

        Args:
            trigger: When, such as `EveryEpoch()`.
            val_df: The DataFrame.
            val_method: Validation methods.
            batch_size: Accepted; validation is exact over all rows.
        """
        self._validation = batch_size, val_df, trigger, val_method
        return self

    def getValidation(self) -> tuple[Any, ...] | None:
        """Return what `setValidation` has set."""
        return self._validation

    def setCheckpoint(self, path: str, trigger: Trigger, isOverWrite: bool = True) -> Self:
        """Write checkpoints below a folder."""
        self._checkpoint = trigger, path, isOverWrite
        return self

    def getCheckpoint(self) -> tuple[Any, ...] | None:
        """Return what `setCheckpoint` has set."""
        return self._checkpoint

    def setTrainSummary(self, val: Any) -> Self:
        """Write the values of training with a `TrainSummary`."""
        self.train_summary = val
        return self

    def getTrainSummary(self) -> Any:
        """Return the `TrainSummary`, if it was set."""
        return self.train_summary

    def setValidationSummary(self, val: Any) -> Self:
        """Write the values of validation with a `ValidationSummary`."""
        self.validation_summary = val
        return self

    def getValidationSummary(self) -> Any:
        """Return the `ValidationSummary`, if it was set."""
        return self.validation_summary

    def setConstantGradientClipping(self, min: float, max: float) -> Self:
        """Limit each value of the gradient to a range."""
        self._clipping["set_gradclip_const"] = (min, max)
        return self

    def setGradientClippingByL2Norm(self, clip_norm: float) -> Self:
        """Limit the norm of the whole gradient."""
        self._clipping["set_gradclip_l2norm"] = (clip_norm,)
        return self

    def clearGradientClipping(self) -> Self:
        """Clip no gradients."""
        self._clipping = {}
        return self

    def copy(self, extra: Any = None) -> Self:
        # Spark copies a stage for a param map; its own settings must not be shared.
        that: Self = super().copy(extra)
        that._clipping = dict(self._clipping)
        return that

    def _fit(self, dataset: Any) -> Any:
        layer = copy.deepcopy(self.model)
        optimizer = Optimizer(
            layer, dataset, self.criterion, self._end or MaxEpoch(self.getMaxEpoch()), self.getBatchSize(),
            self.getOptimMethod(), **self._places, feature_preprocessing=self.feature_preprocessing,
            label_preprocessing=self.label_preprocessing, feature_cols=[self.getFeaturesCol()],
            label_cols=[self.getLabelCol()],
        )  # fmt: skip
        if self._validation is not None:
            optimizer.set_validation(*self._validation)
        if self._checkpoint is not None:
            optimizer.set_checkpoint(*self._checkpoint)
        if self.train_summary is not None:
            optimizer.set_train_summary(self.train_summary)
        if self.validation_summary is not None:
            optimizer.set_val_summary(self.validation_summary)
        for name, values in self._clipping.items():
            getattr(optimizer, name)(*values)
        optimizer.optimize()
        return self._copyValues(self._created(layer))

    def _created(self, layer: Layer) -> NNModel:
        return NNModel(layer, self.feature_preprocessing)


class NNModel(HasColumns, HasBatchSize, Model, MLWritable, MLReadable):  # type: ignore[misc]
    """Adds the outputs of a layer to a Spark DataFrame, as arrays of numbers.

    Args:
        model: The layer.
        feature_preprocessing: The size of a row of features, or a Preprocessing.
    """

    def __init__(
        self, model: Layer | None = None, feature_preprocessing: Any = None, jvalue: Any = None,
        bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        super().__init__()
        if model is not None and not isinstance(model, Layer):
            raise wrong("model", model, "a layer, such as Sequential().add(Linear(4, 2))")
        self._setDefault(batchSize=256)
        self.model = model
        self.feature_preprocessing: Preprocessing | None = as_preprocessing(
            "feature_preprocessing", feature_preprocessing
        )

    def getModel(self) -> Layer:
        """Return the layer."""
        if self.model is None:
            raise ArgumentError(f"{type(self).__name__} has no layer: create it with one, or load it.")
        return self.model

    def _outputs(self) -> Layer:
        """Return the layer whose outputs are the predictions."""
        return self.getModel()

    def _transform(self, dataset: Any) -> Any:
        est = estimator.Estimator.from_bigdl(model=self._outputs(), feature_preprocessing=self.feature_preprocessing)
        return est.predict(
            dataset, feature_cols=[self.getFeaturesCol()], output_cols=[self.getPredictionCol()],
            batch_size=self.getBatchSize() if self.isSet(self.batchSize) else None,
        )  # fmt: skip

    def write(self) -> MLWriter:
        """Return Spark's writer of this model."""
        return _Writer(self)

    def save(self, path: str) -> None:
        """Write params, preprocessing and layer to a folder."""
        self.write().save(path)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return Spark's reader of such a model."""
        return _Reader(cls)


class _Writer(MLWriter):  # type: ignore[misc]
    """Writes the params as Spark does, with the layer beside them."""

    def __init__(self, instance: NNModel) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        DefaultParamsWriter.saveMetadata(self._instance, path, self.sparkSession)
        write_model(path, self._instance.getModel(), self._instance.feature_preprocessing)


class _Reader(MLReader):  # type: ignore[misc]
    """Reads what `_Writer` wrote."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        instance = self._kind(*read_model(path))
        instance._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(instance, metadata)
        return instance
