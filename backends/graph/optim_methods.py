"""BigDL's optim methods as optimizers of ``tf.train``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as v1

from orca.backends.graph.adamax import AdamaxOptimizer
from orca.errors import ArgumentError
from orca.optim_methods import SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, OptimMethod, RMSprop


def created(method: OptimMethod) -> Any:
    """Return the optimizer of ``tf.train`` for an optim method, with its first learning rate.

    Raises:
        ArgumentError: If graphs have no such method, or not with these arguments.
    """
    create = next((create for kind, create in _OPTIMIZERS.items() if isinstance(method, kind)), None)
    if create is None:
        names = ", ".join(kind.__name__ for kind in _OPTIMIZERS)
        raise ArgumentError(f"optimizer={method!r} is not supported for graphs; use {names}, or one of tf.train.")
    return create(method, method.rate().base)


def _sgd(method: Any, rate: float) -> Any:
    if method.weightdecay:
        raise ArgumentError(
            f"weightdecay={method.weightdecay:g} is not supported for graphs: add tf.nn.l2_loss of the weights to the "
            "loss."
        )
    if method.dampening not in (0, method.momentum):
        raise ArgumentError(f"dampening={method.dampening:g} is not supported for graphs, whose momentum has none.")
    if method.momentum:
        return v1.train.MomentumOptimizer(rate, method.momentum, use_nesterov=method.nesterov)
    return v1.train.GradientDescentOptimizer(rate)


def _ftrl(method: Any, rate: float) -> Any:
    strengths = method.l1_regularization_strength, method.l2_regularization_strength
    return v1.train.FtrlOptimizer(
        rate, method.learningrate_power, method.initial_accumulator_value, *strengths,
        l2_shrinkage_regularization_strength=method.l2_shrinkage_regularization_strength,
    )  # fmt: skip


def _adagrad(method: Any, rate: float) -> Any:
    if method.weightdecay:
        raise ArgumentError(f"weightdecay={method.weightdecay:g} is not supported for graphs.")
    return v1.train.AdagradOptimizer(rate)


_OPTIMIZERS: dict[type[OptimMethod], Callable[[Any, float], Any]] = {
    SGD: _sgd,
    Adam: lambda m, rate: v1.train.AdamOptimizer(rate, m.beta1, m.beta2, m.epsilon),
    Adagrad: _adagrad,
    Adadelta: lambda m, rate: v1.train.AdadeltaOptimizer(rate, m.decayrate, m.epsilon),
    RMSprop: lambda m, rate: v1.train.RMSPropOptimizer(rate, m.decayrate, epsilon=m.epsilon),
    Ftrl: _ftrl,
    Adamax: lambda m, rate: AdamaxOptimizer(rate, m.beta1, m.beta2, m.epsilon),
}
