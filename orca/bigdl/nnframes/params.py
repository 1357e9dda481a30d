"""The params that stages of NNFrames share, with their setters."""

from __future__ import annotations

from typing import Any, Self

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol

from orca.core.arguments import check_count, check_text


class HasColumns(HasFeaturesCol, HasPredictionCol):  # type: ignore[misc]
    """The columns that a model reads and adds."""

    def setFeaturesCol(self, value: str) -> Self:
        """Set the column of features."""
        self._set(featuresCol=check_text("featuresCol", value))
        return self

    def setPredictionCol(self, value: str) -> Self:
        """Set the column of predictions."""
        self._set(predictionCol=check_text("predictionCol", value))
        return self


class HasBatchSize(Params):  # type: ignore[misc]
    """The number of rows that are computed at once over all workers."""

    batchSize: Any = Param(Params._dummy(), "batchSize", "rows of a step over all workers", TypeConverters.toInt)

    def setBatchSize(self, value: int) -> Self:
        """Set the rows of a step over all workers."""
        self._set(batchSize=check_count("batchSize", value))
        return self

    def getBatchSize(self) -> int:
        """Return the rows of a step over all workers."""
        return int(self.getOrDefault(self.batchSize))


class TrainingParams(HasColumns, HasBatchSize, HasLabelCol):  # type: ignore[misc]
    """The params of a stage that trains."""

    maxEpoch: Any = Param(Params._dummy(), "maxEpoch", "number of epochs", TypeConverters.toInt)
    learningRate: Any = Param(Params._dummy(), "learningRate", "learning rate", TypeConverters.toFloat)
    learningRateDecay: Any = Param(Params._dummy(), "learningRateDecay", "decay of the rate", TypeConverters.toFloat)
    cachingSample: Any = Param(Params._dummy(), "cachingSample", "accepted, not needed", TypeConverters.toBoolean)

    def setLabelCol(self, value: str) -> Self:
        """Set the column of labels."""
        self._set(labelCol=check_text("labelCol", value))
        return self

    def setMaxEpoch(self, value: int) -> Self:
        """Set the number of epochs."""
        self._set(maxEpoch=check_count("maxEpoch", value))
        return self

    def getMaxEpoch(self) -> int:
        """Return the number of epochs."""
        return int(self.getOrDefault(self.maxEpoch))

    def setLearningRate(self, value: float) -> Self:
        """Set the learning rate of the optim method."""
        self._set(learningRate=value)
        return self

    def getLearningRate(self) -> float:
        """Return the learning rate that was set, or its default."""
        return float(self.getOrDefault(self.learningRate))

    def setLearningRateDecay(self, value: float) -> Self:
        """Set the decay of the learning rate of the optim method."""
        self._set(learningRateDecay=value)
        return self

    def getLearningRateDecay(self) -> float:
        """Return the decay of the learning rate."""
        return float(self.getOrDefault(self.learningRateDecay))

    def setCachingSample(self, value: bool) -> Self:
        """Accept whether rows are cached: they are stored once, on the ranks."""
        self._set(cachingSample=value)
        return self

    def isCachingSample(self) -> bool:
        """Return what `setCachingSample` has set."""
        return bool(self.getOrDefault(self.cachingSample))
