"""An MXNet optimizer over a list of weights, whose state can travel as plain arrays and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from orca.backends.base import State
from orca.backends.mxnet.nets import Weight
from orca.backends.mxnet.tensors import like, plain


class Learner:
    """Applies gradients to weights, with the states that the optimizer keeps for each."""

    def __init__(self, optimizer: Any, weights: Sequence[Weight]) -> None:
        self.optimizer = optimizer
        self.weights = list(weights)
        if all(weight.parameter is not None for weight in weights):
            # Gluon's multipliers of the learning rate and the weight decay.
            optimizer.param_dict = {number: weight.parameter for number, weight in enumerate(weights)}
        self._updater = mx.optimizer.get_updater(optimizer)
        self._first = facts(optimizer)
        self._numbers = list(range(len(self.weights)))

    def update(self) -> None:
        self._updater(
            self._numbers, [weight.gradient for weight in self.weights], [weight.value for weight in self.weights]
        )

    def state(self) -> State:
        return {
            "states": {str(number): plain(state) for number, state in self._updater.states.items()},
            **facts(self.optimizer),
        }

    def load_state(self, state: State | None) -> None:
        """Take over a state, or with None begin as a new optimizer does."""
        reset(self._updater, self._first)
        if state is None:
            return
        for key, told in state["states"].items():
            number = int(key)
            fresh = self.optimizer.create_state_multi_precision(number, self.weights[number].value)
            self._updater.states[number] = like(told, fresh)
            self._updater.states_synced[number] = True
        load_facts(self.optimizer, state)


def reset(updater: Any, first: State) -> None:
    """Forget what an optimizer and its schedule have learned since they were new; `first` holds their facts then."""
    updater.states.clear()
    updater.states_synced.clear()
    updater.optimizer._index_update_count.clear()
    load_facts(updater.optimizer, first)


def facts(optimizer: Any) -> State:
    """The numbers that an optimizer and its schedule keep: rates, counts of updates."""
    return {
        "counts": {str(number): count for number, count in optimizer._index_update_count.items()},
        "numbers": _numbers_of(optimizer),
        "schedule": _numbers_of(optimizer.lr_scheduler) if optimizer.lr_scheduler is not None else None,
    }


def load_facts(optimizer: Any, state: State) -> None:
    """Take over such numbers."""
    optimizer._index_update_count.update({int(number): int(count) for number, count in state["counts"].items()})
    vars(optimizer).update({name: value for name, value in state["numbers"].items() if name in vars(optimizer)})
    if optimizer.lr_scheduler is not None and state.get("schedule") is not None:
        vars(optimizer.lr_scheduler).update(state["schedule"])


def _numbers_of(thing: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if type(value) in (int, float, bool)}
