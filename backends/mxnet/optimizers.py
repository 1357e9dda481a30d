"""An MXNet optimizer over a list of weights; its state is plain arrays and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from orca.backends.base import State
from orca.backends.mxnet.nets import Weight
from orca.backends.mxnet.tensors import like, plain


class Learner:
    """Applies gradients to weights and holds the optimizer's state of each."""

    def __init__(self, optimizer: Any, weights: Sequence[Weight]) -> None:
        self.optimizer = optimizer
        self.weights = list(weights)
        if all(weight.parameter is not None for weight in weights):
            # Gives the optimizer Gluon's multipliers of learning rate and weight decay.
            optimizer.param_dict = {number: weight.parameter for number, weight in enumerate(weights)}
        self._updater = mx.optimizer.get_updater(optimizer)
        self._initial = facts(optimizer)
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
        """Load a state; None resets the optimizer."""
        reset(self._updater, self._initial)
        if state is None:
            return
        for key, saved in state["states"].items():
            number = int(key)
            fresh = self.optimizer.create_state_multi_precision(number, self.weights[number].value)
            self._updater.states[number] = like(saved, fresh)
            self._updater.states_synced[number] = True
        load_facts(self.optimizer, state)


def reset(updater: Any, initial: State) -> None:
    """Reset an optimizer and its schedule; `initial` is what `facts` returned when they were new."""
    updater.states.clear()
    updater.states_synced.clear()
    updater.optimizer._index_update_count.clear()
    load_facts(updater.optimizer, initial)


def facts(optimizer: Any) -> State:
    """Return the scalars of an optimizer and its schedule: rates and update counts."""
    return {
        "counts": {str(number): count for number, count in optimizer._index_update_count.items()},
        "numbers": _numbers_of(optimizer),
        "schedule": _numbers_of(optimizer.lr_scheduler) if optimizer.lr_scheduler is not None else None,
    }


def load_facts(optimizer: Any, state: State) -> None:
    """Load scalars that `facts` returned."""
    optimizer._index_update_count.update({int(number): int(count) for number, count in state["counts"].items()})
    vars(optimizer).update({name: value for name, value in state["numbers"].items() if name in vars(optimizer)})
    if optimizer.lr_scheduler is not None and state.get("schedule") is not None:
        vars(optimizer.lr_scheduler).update(state["schedule"])


def _numbers_of(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if type(value) in (int, float, bool)}
