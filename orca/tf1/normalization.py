"""Batch normalization as ``tf.layers`` had it: its moving averages are updated by operations in ``UPDATE_OPS``."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as v1
from tensorflow.python.keras.legacy_tf_layers import base

from orca.errors import ArgumentError


class BatchNormalization(base.Layer):  # type: ignore[misc]
    """Normalizes each channel over the rows of a batch, and by moving averages outside of training."""

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        moving_mean_initializer: Any = None,
        moving_variance_initializer: Any = None,
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        trainable: bool = True,
        renorm: bool = False,
        fused: bool | None = None,
        name: str | None = None,
        **more: Any,
    ) -> None:
        scopes = {key: more.pop(key) for key in ("_scope", "_reuse") if key in more}
        unknown = [key for key, value in more.items() if value is not None and not key.startswith("renorm")]
        if renorm or unknown:
            raise ArgumentError(f"batch_normalization: {', '.join(unknown) or 'renorm=True'} is not supported.")
        super().__init__(trainable=trainable, name=name, **scopes)
        zeros, ones = v1.zeros_initializer(), v1.ones_initializer()
        self._axis, self._momentum, self._epsilon = axis, momentum, epsilon
        self._parts = {
            "gamma": (scale, gamma_initializer or ones, gamma_regularizer, trainable),
            "beta": (center, beta_initializer or zeros, beta_regularizer, trainable),
            "moving_mean": (True, moving_mean_initializer or zeros, None, False),
            "moving_variance": (True, moving_variance_initializer or ones, None, False),
        }
        self.gamma: Any = None
        self.beta: Any = None
        self.moving_mean: Any = None
        self.moving_variance: Any = None

    def build(self, input_shape: Any) -> None:
        channels = v1.TensorShape(input_shape)[self._axis]
        for name, (wanted, initializer, regularizer, trainable) in self._parts.items():
            if wanted:
                variable = self.add_weight(
                    name, [channels], initializer=initializer, regularizer=regularizer, trainable=trainable
                )
                setattr(self, name, variable)
        self.built = True

    def call(self, inputs: Any, training: Any = False) -> Any:
        rank = inputs.shape.rank
        axis = self._axis % rank
        axes = [number for number in range(rank) if number != axis]
        training = v1.convert_to_tensor(training, v1.bool)
        batch_mean, batch_variance = v1.nn.moments(inputs, axes)
        mean = v1.where(training, batch_mean, v1.convert_to_tensor(self.moving_mean))
        variance = v1.where(training, batch_variance, v1.convert_to_tensor(self.moving_variance))
        rate = v1.where(training, v1.constant(1 - self._momentum), v1.constant(0.0))
        for moving, batch in ((self.moving_mean, batch_mean), (self.moving_variance, batch_variance)):
            update = v1.assign_sub(moving, (v1.convert_to_tensor(moving) - batch) * v1.cast(rate, batch.dtype))
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update.op if hasattr(update, "op") else update)
        shape = [-1 if number == axis else 1 for number in range(rank)]
        parts = [None if part is None else v1.reshape(part, shape) for part in (mean, variance, self.beta, self.gamma)]
        outputs = v1.nn.batch_normalization(inputs, *parts, self._epsilon)
        outputs.set_shape(inputs.shape)
        return outputs


def batch_normalization(
    inputs: Any, axis: int = -1, momentum: float = 0.99, epsilon: float = 1e-3, *args: Any,
    training: Any = False, trainable: bool = True, name: str | None = None, reuse: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """Return a batch normalized; run the operations in the collection ``UPDATE_OPS`` in each training step.

    Orca's estimators run them by themselves.
    """
    options = {"trainable": trainable, "name": name, "_reuse": reuse, "_scope": name, **more}
    layer = BatchNormalization(axis, momentum, epsilon, *args, **options)
    return layer.apply(inputs, training=training)
