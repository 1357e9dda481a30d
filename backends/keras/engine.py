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


class GraphFunction:
    """A function that TensorFlow runs as a graph.

    ``tf.function`` derives the types of all arguments in every call, which takes longer than a step of a small
    model. Here arguments of the same structure, dtypes and shapes go directly to the graph that served them before.
    """

    def __init__(self, step: Callable[..., Any], compiled: bool) -> None:
        import tensorflow as tf

        # As in Keras, custom steps are not converted by AutoGraph.
        self._traced = tf.function(step, autograph=False, jit_compile=compiled, reduce_retracing=True)
        self._graphs: dict[Any, Callable[..., Any]] = {}
        self._runs_eagerly = tf.config.functions_run_eagerly

    def __call__(self, *arguments: Any) -> Any:
        if self._runs_eagerly():
            return self._traced(*arguments)
        form = form_of(arguments)
        graph = self._graphs.get(form)
        if graph is not None:
            return graph(*arguments)
        results = self._traced(*arguments)
        self._graphs[form] = self._traced.get_concrete_function(*arguments)
        return results


def form_of(tree: Any) -> Any:
    """Return the structure of nested tensors with their dtypes and shapes, as a key for a dict."""
    if isinstance(tree, dict):
        return dict, *((key, form_of(value)) for key, value in tree.items())
    if isinstance(tree, list | tuple):
        return type(tree), *map(form_of, tree)
    return None if tree is None else (tree.dtype, tuple(tree.shape))


class TensorFlow(Engine):
    def tensor(self, array: Any) -> Any:
        import tensorflow as tf

        return tf.convert_to_tensor(array)

    def dense(self, gradient: Any) -> Any:
        return self.tensor(gradient)

    def value_of(self, variable: Any) -> np.ndarray[Any, Any]:
        return np.array(self.tensor(getattr(variable, "value", variable)))

    def function(self, step: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        return GraphFunction(step, compiled)

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
