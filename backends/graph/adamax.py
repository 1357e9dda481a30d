"""Adamax as an optimizer of ``tf.train``, which does not have it."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as v1


class AdamaxOptimizer(v1.train.AdamOptimizer):  # type: ignore[misc]
    """Adam with the infinity norm in place of the second moment."""

    def __init__(
        self, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-38
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name="Adamax")

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        slots = {"m": self.get_slot(var, "m"), "v": self.get_slot(var, "v")}
        refs = {name: slot._ref() for name, slot in slots.items()}
        return v1.raw_ops.ApplyAdaMax(var=var._ref(), **refs, **self._numbers(var), grad=grad).op

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        slots = {"m": self.get_slot(var, "m").handle, "v": self.get_slot(var, "v").handle}
        return v1.raw_ops.ResourceApplyAdaMax(var=var.handle, **slots, **self._numbers(var), grad=grad)

    def _numbers(self, var: Any) -> dict[str, Any]:
        dtype = var.dtype.base_dtype
        beta1_power, _ = self._get_beta_accumulators()
        return {
            "beta1_power": v1.cast(beta1_power, dtype),
            "lr": v1.cast(self._lr_t, dtype),
            "beta1": v1.cast(self._beta1_t, dtype),
            "beta2": v1.cast(self._beta2_t, dtype),
            "epsilon": v1.cast(self._epsilon_t, dtype),
        }
