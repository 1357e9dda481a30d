"""L-BFGS with BigDL's rules: one iteration per step, of fixed size, from the directions of earlier steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_LEAST_CURVATURE = 1e-10


class LBFGSOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Moves along an estimate of the Newton direction.

    BigDL's optimizer computes the gradient of a step once, so that `max_iter` never reaches a second iteration, and so
    does this one. What was learned of the curvature is the state of the first parameter.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def _values(self) -> list[nn.Parameter]:
        return [value for group in self.param_groups for value in group["params"] if value.requires_grad]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        values = self._values()
        group, state = self.param_groups[0], self.state[values[0]]
        gradient = torch.cat([(torch.zeros_like(v) if v.grad is None else v.grad).reshape(-1) for v in values])
        total = float(gradient.abs().sum())
        if total < group["tolfun"]:
            return
        direction = self._direction(state, gradient)
        state["gradient"] = gradient
        if float(gradient.dot(direction)) > -group["tolx"]:
            return
        first = "direction" not in state
        state["direction"] = direction
        state["size"] = group["lr"] * (min(1.0, 1.0 / total) if first else 1.0)
        offset = 0
        for value in values:
            part = direction[offset : offset + value.numel()].view_as(value)
            value.add_(part, alpha=state["size"])
            offset += value.numel()

    def _direction(self, state: dict[str, Any], gradient: torch.Tensor) -> torch.Tensor:
        """Return the direction of this step, after adding the last one to the history."""
        if "direction" not in state:
            state.update(moves=[], changes=[], scale=1.0)
            return -gradient
        moves, changes = state["moves"], state["changes"]
        change, move = gradient - state["gradient"], state["direction"] * state["size"]
        curvature = float(change.dot(move))
        if curvature > _LEAST_CURVATURE:
            if len(moves) == self.param_groups[0]["ncorrection"]:
                del moves[0], changes[0]
            moves.append(move)
            changes.append(change)
            state["scale"] = curvature / float(change.dot(change))
        rest = -gradient
        shares = []
        for move, change in zip(reversed(moves), reversed(changes), strict=True):
            inverse = 1.0 / change.dot(move)
            share = move.dot(rest) * inverse
            rest.sub_(change * share)
            shares.append((move, change, inverse, share))
        direction = rest.mul_(state["scale"])
        for move, change, inverse, share in reversed(shares):
            direction.add_(move * (share - change.dot(direction) * inverse))
        return direction
