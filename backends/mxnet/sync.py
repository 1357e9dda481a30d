"""Synchronization of replicas across ranks: the interface, and the strategy of a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mxnet as mx

from orca.backends.base import Seat, State
from orca.backends.mxnet.nets import Weight
from orca.backends.mxnet.optimizers import Learner

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


class Sync:
    """The interface of a synchronization strategy; as it is, that of a single rank."""

    keeps_step = True
    world = 1

    def __init__(self) -> None:
        self.learner: Learner | None = None

    def seat(self, rank: int) -> Seat:
        return Seat(rank, self.world)

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        """Start from rank 0's values of these weights, and from an optimizer state if there is one."""
        self.learner = Learner(optimizer, weights)
        if state is not None:
            self.learner.load_state(state)

    def reload(self, state: State | None) -> None:
        """Load an optimizer state, after every rank has loaded new weights."""
        assert self.learner is not None
        self.learner.load_state(state)

    def reduce(self) -> None:
        """Sum the gradients over all ranks, in place."""

    def update(self) -> None:
        """Apply the gradients."""
        assert self.learner is not None
        self.learner.update()

    def total(self, value: float) -> float:
        """Sum a number over all ranks."""
        return value

    def settle(self, statistics: Sequence[Any]) -> None:
        """At the end of an epoch, synchronize what the steps do not, such as running statistics."""

    def optimizer_state(self) -> State:
        assert self.learner is not None
        return self.learner.state()


def same_statistics(context: RankContext, statistics: Sequence[Any] | None) -> None:
    """Broadcast rank 0's running statistics; a rank without a model passes None."""
    first = context.allgather([value.asnumpy() for value in statistics or ()] if context.place.rank == 0 else None)[0]
    if context.place.rank and statistics:
        for own, value in zip(statistics, first, strict=True):
            own[:] = mx.nd.array(value, dtype=own.dtype)
