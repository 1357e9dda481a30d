"""Custom training steps: the object that a user's `train_step` function receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from orca.backends.base import StepOptions
from orca.backends.torch.sync import Sync, penalize
from orca.errors import ArgumentError, suggest


class Step:
    """One rank's share of a training step, passed to ``train_step(step)``.

    ``train_step`` calls `minimize` for each loss and returns the losses to report: a tensor or a dict of tensors, each
    the mean over this rank's rows.

    Attributes:
        x: The features, as tensors.
        y: The labels, as tensors; None without labels.
        model: The module.
        optimizers: The optimizers by name.
        autocast: Returns the context manager of the estimator's ``precision=``.
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
        """Compute the gradients of a loss, average them over the rows of all ranks, and apply them.

        Args:
            loss: The mean loss over this rank's rows.
            optimizer: Name of the optimizer to step; optional if there is only one.
            retain_graph: Keep the graph for another backward pass.

        Raises:
            ArgumentError: If there is no optimizer of that name, or the name is missing and there are several.
        """
        chosen = self._find(optimizer)
        values = [value for group in chosen.param_groups for value in group["params"] if value.requires_grad]
        chosen.zero_grad(set_to_none=True)
        (loss * (self._share * self._sync.world)).backward(retain_graph=retain_graph)
        # A parameter that no rank uses keeps grad=None, as in a single process.
        values = self._sync.average_gradients(values)
        penalize(chosen)
        if self._options.on_gradients is not None:
            self._options.on_gradients()
        if self._options.clip_value is not None:
            for value in values:
                value.grad.clamp_(*self._options.clip_value)
        if self._options.clip_norm is not None:
            nn.utils.clip_grad_norm_(values, self._options.clip_norm)
        chosen.step()

    def _find(self, name: str | None) -> torch.optim.Optimizer:
        names = ", ".join(self.optimizers)
        if name is None:
            if len(self.optimizers) > 1:
                raise ArgumentError(f"minimize needs optimizer=: there are several ({names}).")
            return next(iter(self.optimizers.values()))
        if name not in self.optimizers:
            raise ArgumentError(
                f"optimizer={name!r} does not exist. Optimizers: {names}." + suggest(name, self.optimizers)
            )
        return self.optimizers[name]
