"""`NNClassifier` and `NNClassifierModel`: stages whose predictions are classes."""

from __future__ import annotations

from typing import Any, Self

from pyspark.ml.param import Param, Params, TypeConverters

from orca.backends.bigdl.container import Sequential
from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.decision import Decision
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.preprocessing import ScalarToTensor
from orca.bigdl.nnframes.stages import NNEstimator, NNModel
from orca.core.arguments import check_number


class NNClassifierModel(NNModel):
    """Adds the class of each row to a Spark DataFrame, as a double.

    It is the number of the largest output, from 1. A layer with one output decides between 1 and 0 by a threshold.

    Args:
        model: The layer.
        feature_preprocessing: The size of a row of features, or a Preprocessing.
    """

    threshold: Any = Param(Params._dummy(), "threshold", "of a layer with one output", TypeConverters.toFloat)

    def __init__(
        self, model: Layer | None = None, feature_preprocessing: Any = None, jvalue: Any = None,
        bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        super().__init__(model, feature_preprocessing)
        self._setDefault(threshold=0.5)

    def setThreshold(self, value: float) -> Self:
        """Set the threshold of a layer with one output."""
        self._set(threshold=check_number("threshold", value))
        return self

    def getThreshold(self) -> float:
        """Return the threshold of a layer with one output."""
        return float(self.getOrDefault(self.threshold))

    def _outputs(self) -> Layer:
        return Sequential().add(self.getModel()).add(Decision(self.getThreshold()))


class NNClassifier(NNEstimator):
    """Trains a layer that classifies: labels are numbers of classes, from 1.

    Args:
        model: The layer. It stays as it is.
        criterion: The criterion, such as `ClassNLLCriterion()`.
        feature_preprocessing: The size of a row of features, such as ``[28, 28]``, or a Preprocessing.
        workers: Number of workers; by default all cores of the context.
        seed: Seed of shuffling and dropout.
    """

    def __init__(
        self, model: Layer, criterion: Criterion, feature_preprocessing: Any = None, jvalue: Any = None,
        bigdl_type: str = "float", *, workers: int | None = None, seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, criterion, feature_preprocessing, ScalarToTensor(), workers=workers, seed=seed)

    def _created(self, layer: Layer) -> NNModel:
        return NNClassifierModel(layer, self.feature_preprocessing)
