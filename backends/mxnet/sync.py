"""How replicas on several ranks are kept the same; on one rank there is nothing to do."""

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
    """The contract, and what one rank by itself does."""

    keeps_step = True
    world = 1

    def __init__(self) -> None:
        self.learner: Learner | None = None

    def seat(self, rank: int) -> Seat:
        return Seat(rank, self.world)

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        """Begin with rank 0's values of these weights, and the state of an optimizer if there is one."""
        self.learner = Learner(optimizer, weights)
        if state is not None:
            self.learner.load_state(state)

    def reload(self, state: State | None) -> None:
        """Hear that the weights were set anew, on every rank, and the optimizer's state with them."""
        assert self.learner is not None
        self.learner.load_state(state)

    def reduce(self) -> None:
        """Sum the gradients over all ranks, in place."""

    def update(self) -> None:
        """Use the gradients."""
        assert self.learner is not None
        self.learner.update()

    def total(self, value: float) -> float:
        """A number summed over all ranks."""
        return value

    def settle(self, statistics: Sequence[Any]) -> None:
        """At the end of an epoch, make equal what the steps do not."""

    def optimizer_state(self) -> State:
        assert self.learner is not None
        return self.learner.state()


def same_statistics(context: RankContext, statistics: Sequence[Any] | None) -> None:
    """Take over rank 0's running statistics; a rank that has no model takes part with None."""
    told = context.allgather([value.asnumpy() for value in statistics or ()] if context.place.rank == 0 else None)[0]
    if context.place.rank and statistics:
        for own, first in zip(statistics, told, strict=True):
            own[:] = mx.nd.array(first, dtype=own.dtype)
