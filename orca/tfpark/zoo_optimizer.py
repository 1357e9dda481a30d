"""`ZooOptimizer`: marks a train operation, so that `TFOptimizer.from_train_op` finds its optimizer and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as v1

from orca.backends.graph.optimizers import GivenGradients, check_optimizer
from orca.errors import ArgumentError

_COLLECTION = "orca_train_ops"


@dataclass(frozen=True)
class _TrainOp:
    """What a marked train operation stands for."""

    operation: Any
    optimizer: Any
    pairs: tuple[tuple[Any, Any], ...]


class ZooOptimizer(v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of ``tf.train`` whose train operation is run by `TFOptimizer`.

    The operation itself does nothing; the workers reduce the gradients that it was given, and apply them.

    Args:
        optimizer: The optimizer that applies the gradients.
    """

    def __init__(self, optimizer: Any, name: str | None = None) -> None:
        check_optimizer(optimizer)
        if not isinstance(optimizer, v1.train.Optimizer):
            raise ArgumentError(f"ZooOptimizer({optimizer!r}): expected an optimizer of tf.train.")
        super().__init__(False, name or "ZooOptimizer")
        self.optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Return pairs (gradient, variable), which may be changed before `apply_gradients`."""
        return self.optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Return the train operation for `TFOptimizer.from_train_op`; the graph's global step counts its steps."""
        pairs = tuple((gradient, variable) for gradient, variable in grads_and_vars if gradient is not None)
        operation = v1.no_op(name=name or "orca_train_op")
        v1.add_to_collection(_COLLECTION, _TrainOp(operation, self.optimizer, pairs))
        return operation


def optimizer_behind(train_op: Any) -> GivenGradients:
    """Return the optimizer and the gradients of a train operation."""
    marked = train_op.graph.get_collection(_COLLECTION) if isinstance(train_op, v1.Operation) else []
    for one in marked:
        if one.operation is train_op:
            return GivenGradients(one.optimizer, one.pairs)
    raise ArgumentError(
        f"train_op={getattr(train_op, 'name', train_op)!r} does not come from a ZooOptimizer, so its gradients are not "
        "known: create it with ZooOptimizer(tf.train.AdamOptimizer()).minimize(loss)."
    )
