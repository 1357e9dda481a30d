"""`KerasModel`: a compiled Keras model that trains on several workers."""

from __future__ import annotations

from typing import Any

from orca.errors import ArgumentError
from orca.estimator import Estimator
from orca.tfpark.dataset import TFDataset


class KerasModel:
    """A compiled Keras model whose `fit`, `evaluate` and `predict` run on several workers.

    Args:
        model: The model; it receives the trained weights.
        model_dir: Folder for checkpoints.
        workers: Number of workers; ``distributed`` of the methods is accepted and has no effect.
    """

    def __init__(
        self, model: Any, model_dir: str | None = None, optimizer: Any = None, *, workers: int = 1,
        seed: int | None = None,
    ) -> None:  # fmt: skip
        if optimizer is not None:
            raise ArgumentError("optimizer= is not supported: compile the Keras model with the optimizer.")
        self.model = model
        self.estimator = Estimator.from_keras(model=model, model_dir=model_dir, workers=workers, seed=seed)

    def fit(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1,
        validation_data: Any = None, distributed: bool = False, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Train on arrays or on a `TFDataset`; return the History. Further arguments are those of `Estimator.fit`."""
        del distributed
        data, more = _rows(x)
        size = x.batch_size if isinstance(x, TFDataset) else batch_size
        validation = x.validation_data if isinstance(x, TFDataset) else validation_data
        history = self.estimator.fit(
            data, y, epochs=epochs, batch_size=size, validation_data=validation, **more, **_labels(x), **kwargs
        )
        self.take_weights()
        return history

    def evaluate(self, x: Any = None, y: Any = None, batch_per_thread: int = 256, distributed: bool = False) -> Any:
        """Return loss and metrics."""
        del distributed
        data, more = _rows(x)
        return self.estimator.evaluate(data, y, batch_size=batch_per_thread, **more, **_labels(x))

    def predict(self, x: Any, batch_per_thread: int | None = None, distributed: bool = False) -> Any:
        """Return the outputs."""
        del distributed
        data, more = _rows(x)
        return self.estimator.predict(data, batch_size=batch_per_thread, **more)

    def take_weights(self) -> None:
        """Give the model the trained weights."""
        self.model.set_weights(self.estimator.get_model().get_weights())

    def get_weights(self) -> Any:
        """Return the weights as arrays."""
        return self.model.get_weights()

    def set_weights(self, weights: Any) -> None:
        """Set the weights; the next `fit` begins with them."""
        self.model.set_weights(weights)
        params = {**self.estimator.get_params(deep=False), "model": self.model}
        self.estimator = Estimator.from_keras(**{name: value for name, value in params.items() if value is not None})

    def save_model(self, path: str) -> None:
        """Write the model as a Keras file."""
        self.model.save(path)

    @staticmethod
    def load_model(path: str) -> KerasModel:
        """Read a compiled model from a Keras file."""
        import keras

        return KerasModel(keras.models.load_model(path))

    def save_weights(self, path: str) -> None:
        """Write the weights as a Keras file."""
        self.model.save_weights(path)


def _rows(x: Any) -> tuple[Any, dict[str, Any]]:
    return (x.data, x.columns) if isinstance(x, TFDataset) else (x, {})


def _labels(x: Any) -> dict[str, Any]:
    return x.label_columns if isinstance(x, TFDataset) else {}
