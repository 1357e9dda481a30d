"""TensorFlow 1 as far as programs with placeholders and sessions use it: ``import orca.tf1 as tf``.

All names are those of ``tensorflow.compat.v1``. What that lacks with Keras 3 is added: ``tf.layers``, and
``tf.contrib.slim`` if tf_slim is installed. Eager execution stays on for the rest of the program, so that Keras models
work beside graphs.

>>> import orca.tf1 as tf
>>> with tf.Graph().as_default():
...     x = tf.placeholder(tf.float32, (None, 4))
...     y = tf.layers.dense(x, 2)
>>> y.shape.as_list()
[None, 2]
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as _v1

from orca.errors import ArgumentError
from orca.tf1 import contrib, layers


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Any:
    """Return a tensor that rows are fed to; it needs a graph.

    Raises:
        ArgumentError: If there is no graph to add it to.
    """
    if _v1.executing_eagerly():
        raise ArgumentError(
            "tf.placeholder() needs a graph. Build the model within `with tf.Graph().as_default():`, or call "
            "tf.disable_eager_execution() at the beginning of a program that uses no Keras model."
        )
    return _v1.placeholder(dtype, shape, name)


def __getattr__(name: str) -> Any:
    if name in ("estimator", "keras_estimator"):
        raise AttributeError(
            "tf.estimator was removed from TensorFlow: build the graph and use orca.Estimator.from_graph."
        )
    return getattr(_v1, name)


def __dir__() -> list[str]:
    return sorted({*dir(_v1), "contrib", "layers", "placeholder"})


__all__ = ["contrib", "layers", "placeholder"]
