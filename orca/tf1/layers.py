"""``tf.layers`` of TensorFlow 1: functions that add a layer to the graph."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from orca.tf1.normalization import BatchNormalization, batch_normalization

# TensorFlow names Keras layers as the replacement, which graphs do not need.
warnings.filterwarnings("ignore", r"`(tf\.layers|layer\.apply)", UserWarning)

_MODULES = ("core", "convolutional", "pooling")


def __getattr__(name: str) -> Any:
    for module in _MODULES:
        found = getattr(importlib.import_module(f"tensorflow.python.layers.{module}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"tf.layers has no {name!r} in this version of TensorFlow.")


def __dir__() -> list[str]:
    modules = [importlib.import_module(f"tensorflow.python.layers.{module}") for module in _MODULES]
    names = {name for module in modules for name in dir(module) if not name.startswith("_")}
    return sorted(names | {"BatchNormalization", "batch_normalization"})


__all__ = ["BatchNormalization", "batch_normalization"]
