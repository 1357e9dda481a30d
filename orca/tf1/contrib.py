"""``tf.contrib`` of TensorFlow 1, as far as it lives on: ``slim``, by the package tf_slim."""

from __future__ import annotations

import importlib
from typing import Any

from orca.errors import MissingPackageError


def __getattr__(name: str) -> Any:
    if name == "slim":
        return _slim()
    if name == "layers":
        return _slim().layers
    raise AttributeError(f"tf.contrib.{name} was removed from TensorFlow; orca.tf1 has tf.contrib.slim and .layers.")


def _slim() -> Any:
    """Import tf_slim, which expects some names where older versions of TensorFlow had them."""
    from tensorflow.python.framework import ops, tensor
    from tensorflow.python.layers import normalization
    from tensorflow.python.ops import cond, control_flow_case, control_flow_ops, while_loop

    from orca.tf1.normalization import BatchNormalization

    moved = {
        (ops, "Tensor"): tensor.Tensor,
        (control_flow_ops, "cond"): cond.cond,
        (control_flow_ops, "case"): control_flow_case.case,
        (control_flow_ops, "while_loop"): while_loop.while_loop,
    }
    for (module, attribute), value in moved.items():
        if not hasattr(module, attribute):
            setattr(module, attribute, value)
    vars(normalization).setdefault("BatchNormalization", BatchNormalization)
    try:
        return importlib.import_module("tf_slim")
    except ImportError as error:
        raise MissingPackageError(
            'tf.contrib.slim needs tf_slim, which is not installed. Run: pip install "orca-estimator[graph]"'
        ) from error


__all__ = ["slim"]  # noqa: F822 - imported on first use
