"""What differs between the libraries that Keras runs on, as far as replicas have to know: TensorFlow and torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


class Engine(ABC):
    """One of the libraries."""

    @abstractmethod
    def tensor(self, array: Any) -> Any:
        """An array as a tensor."""

    @abstractmethod
    def dense(self, gradient: Any) -> Any:
        """A gradient as a tensor, one that names only some rows included."""

    @abstractmethod
    def value_of(self, variable: Any) -> np.ndarray[Any, Any]:
        """A variable's value, one that is spread over devices included."""

    @abstractmethod
    def function(self, step: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        """A step made quick to call."""

    @abstractmethod
    def seed(self, number: int) -> None:
        """Start the library's own random numbers."""


class TensorFlow(Engine):
    def tensor(self, array: Any) -> Any:
        import tensorflow as tf

        return tf.convert_to_tensor(array)

    def dense(self, gradient: Any) -> Any:
        return self.tensor(gradient)

    def value_of(self, variable: Any) -> np.ndarray[Any, Any]:
        return np.array(self.tensor(getattr(variable, "value", variable)))

    def function(self, step: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        import tensorflow as tf

        # As in Keras: branches on tensors in a custom step are the user's own to write.
        return tf.function(step, autograph=False, jit_compile=compiled, reduce_retracing=True)  # type: ignore[no-any-return]

    def seed(self, number: int) -> None:
        import tensorflow as tf

        tf.random.set_seed(number)


class Torch(Engine):
    def tensor(self, array: Any) -> Any:
        return keras.ops.convert_to_tensor(array)

    def dense(self, gradient: Any) -> Any:
        return gradient

    def value_of(self, variable: Any) -> np.ndarray[Any, Any]:
        return np.array(keras.ops.convert_to_numpy(variable))

    def function(self, step: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        return step

    def seed(self, number: int) -> None:
        import torch

        torch.manual_seed(number)


LIBRARY = str(keras.backend.backend())
"""The library that Keras runs on in this process."""
engine: Engine = Torch() if LIBRARY == "torch" else TensorFlow()
