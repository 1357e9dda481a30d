"""The operations that replicas need and that differ between Keras on TensorFlow and Keras on torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


class Engine(ABC):
    """A library that Keras runs on."""

    @abstractmethod
    def tensor(self, array: Any) -> Any:
        """Convert an array to a tensor."""

    @abstractmethod
    def dense(self, gradient: Any) -> Any:
        """Convert a gradient, which may be sparse, to a dense tensor."""

    @abstractmethod
    def value_of(self, variable: Any) -> np.ndarray[Any, Any]:
        """Return the value of a variable, which may be distributed over devices."""

    @abstractmethod
    def function(self, step: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        """Turn a step into a graph function where the library has them."""

    @abstractmethod
    def seed(self, number: int) -> None:
        """Seed the library's random numbers."""


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

        # As in Keras, custom steps are not converted by AutoGraph.
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
