"""TensorFlow 1 as far as programs with placeholders and sessions use it: ``import orca.tf1 as tf``.

All names are those of ``tensorflow.compat.v1``. What that lacks with Keras 3 is added: ``tf.layers``, and
``tf.contrib.slim`` if tf_slim is installed. Eager execution stays on for the rest of the program, so that Keras models
work beside graphs. A placeholder outside of any graph opens a default graph for its thread, as TensorFlow 1 had one;
the call that captures it, such as `Estimator.from_graph`, and any use of Keras close it again.

>>> import orca.tf1 as tf
>>> with tf.Graph().as_default():
...     x = tf.placeholder(tf.float32, (None, 4))
...     y = tf.layers.dense(x, 2)
>>> y.shape.as_list()
[None, 2]
"""

from __future__ import annotations

import functools
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as _v1

from orca.backends.graph import default_graph as _default_graph
from orca.tf1 import contrib, layers, train

_OF_GRAPH = (
    "get_collection", "get_collection_ref", "get_default_graph", "global_variables", "global_variables_initializer",
    "initialize_all_variables", "local_variables", "local_variables_initializer", "model_variables",
    "moving_average_variables", "tables_initializer", "trainable_variables", "variables_initializer",
)  # fmt: skip
"""Functions that read or extend the default graph, also after it was captured."""


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Any:
    """Return a tensor that rows are fed to; outside of any graph, open one for this thread."""
    _default_graph.begin()
    return _v1.placeholder(dtype, shape, name)


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Any:
    """Return a placeholder that has a value of its own; outside of any graph, open one for this thread."""
    _default_graph.begin()
    return _v1.placeholder_with_default(input, shape, name)


def sparse_placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Any:
    """Return a placeholder of sparse rows; outside of any graph, open one for this thread."""
    _default_graph.begin()
    return _v1.sparse_placeholder(dtype, shape, name)


def reset_default_graph() -> None:
    """Forget the default graph of this thread: the next placeholder opens a new one."""
    _default_graph.reset()
    _v1.reset_default_graph()


class Session(_v1.Session):  # type: ignore[misc]
    """A session on a graph, by default on the default graph of this thread, which it opens if there is none."""

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        if graph is None:
            _default_graph.begin_first()
        with _default_graph.entered():
            super().__init__(target, graph, config)

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)
        _default_graph.close_if_captured()


def __getattr__(name: str) -> Any:
    if name in ("estimator", "keras_estimator"):
        raise AttributeError(
            "tf.estimator was removed from TensorFlow: build the graph and use orca.Estimator.from_graph."
        )
    value = getattr(_v1, name)
    return _in_graph(value) if name in _OF_GRAPH else value


def _in_graph(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _default_graph.entered():
            return function(*args, **kwargs)

    return call


def __dir__() -> list[str]:
    return sorted({*dir(_v1), *__all__})


__all__ = [
    "Session", "contrib", "layers", "placeholder", "placeholder_with_default", "reset_default_graph",
    "sparse_placeholder", "train",
]  # fmt: skip
