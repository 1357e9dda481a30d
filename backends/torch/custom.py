"""Custom training steps: what a user's `train_step` function works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from orca.backends.base import StepOptions
from orca.backends.torch.sync import Sync, Usage
from orca.errors import ArgumentError, suggest


class Step:
    """One rank's share of a step, handed to ``train_step(step)``.

    ``step.x`` and ``step.y`` are tensors (``y`` is None without labels), ``step.model`` the module,
    ``step.optimizers`` the optimizers by name. Call `minimize` for each loss; return the losses to be shown,
    as a tensor or a dict of them, each the mean over this rank's rows.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        model: nn.Module,
        optimizers: dict[str, torch.optim.Optimizer],
        share: float,
        sync: Sync,
        options: StepOptions,
        autocast: Callable[[], Any],
    ) -> None:
        self.x, self.y, self.model, self.optimizers = x, y, model, optimizers
        self.autocast = autocast
        self._share, self._sync, self._options = share, sync, options

    def minimize(self, loss: torch.Tensor, optimizer: str | None = None, *, retain_graph: bool = False) -> None:
        """Compute the gradients of `loss`, average them over all ranks by rows, and let an optimizer use them."""
        chosen = self._find(optimizer)
        values = [value for group in chosen.param_groups for value in group["params"] if value.requires_grad]
        chosen.zero_grad(set_to_none=True)
        (loss * (self._share * self._sync.world)).backward(retain_graph=retain_graph)
        # What no rank has used keeps no gradient, as in one process.
        used = Usage(values).look(self._sync.total)
        for value in used:
            if value.grad is None:
                value.grad = torch.zeros_like(value)
        values = used
        self._sync.average([value.grad for value in values])
        if self._options.on_gradients is not None:
            self._options.on_gradients()
        if self._options.clip_value is not None:
            for value in values:
                value.grad.clamp_(*self._options.clip_value)
        if self._options.clip_norm is not None:
            nn.utils.clip_grad_norm_(values, self._options.clip_norm)
        chosen.step()

    def _find(self, name: str | None) -> torch.optim.Optimizer:
        known = ", ".join(self.optimizers)
        if name is None:
            if len(self.optimizers) > 1:
                raise ArgumentError(f"minimize needs optimizer=: there are several ({known}).")
            return next(iter(self.optimizers.values()))
        if name not in self.optimizers:
            raise ArgumentError(
                f"optimizer={name!r} is not one of those made: {known}." + suggest(name, self.optimizers)
            )
        return self.optimizers[name]
