"""`TFPredictor`: computes outputs of a session's graph for all rows of a `TFDataset`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca.context import workers_for
from orca.errors import ArgumentError
from orca.estimator import Estimator
from orca.shards import records
from orca.tfpark.dataset import TFDataset, dataset_behind
from orca.tfpark.keras_model import KerasModel


class TFPredictor:
    """Outputs of a graph, with the values of a session, for the rows of a dataset.

    Args:
        sess: The session.
        outputs: Tensors with one entry per row, built from `TFDataset.tensors`.
        inputs: The placeholders; by default those of the dataset.
        dataset: The rows; by default the dataset whose placeholders the outputs depend on.
        workers: Number of workers; by default all cores of the context.
    """

    def __init__(
        self, sess: Any, outputs: Sequence[Any], inputs: Any = None, dataset: TFDataset | None = None,
        workers: int | None = None,
    ) -> None:  # fmt: skip
        tensors = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        self.dataset = _for_prediction(dataset_behind(tensors[0], dataset, "outputs"))
        self._trainer = Estimator.from_graph(
            inputs=self.dataset.placeholders[0] if inputs is None else inputs,
            outputs=tensors[0] if len(tensors) == 1 else tensors,
            sess=sess,
            workers=workers_for(None, workers),
        )

    @classmethod
    def from_outputs(cls, sess: Any, outputs: Sequence[Any]) -> TFPredictor:
        """Create a predictor of outputs built from `TFDataset.tensors`."""
        return cls(sess, outputs)

    @classmethod
    def from_keras(cls, keras_model: Any, dataset: TFDataset, workers: int | None = None) -> TFPredictor:
        """Create a predictor of a Keras model."""
        predictor = cls.__new__(cls)
        predictor.dataset = _for_prediction(dataset)
        predictor._trainer = KerasModel(keras_model, workers=workers_for(None, workers)).estimator
        return predictor

    def predict(self) -> Any:
        """Return an RDD with one record per row, in order; on other runtimes an XShards of the outputs."""
        shards = self.dataset.shards(labelled=False)
        predicted = self._trainer.predict(shards, batch_size=self.dataset.batch_per_thread)
        return records.records_of(predicted, "prediction")


def _for_prediction(dataset: TFDataset) -> TFDataset:
    if dataset.batch_size is not None:
        raise ArgumentError("You should set batch_per_thread on TFDataset instead of batch_size for prediction.")
    return dataset
