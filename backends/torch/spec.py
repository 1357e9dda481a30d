"""The arguments of `from_torch`: checked on the driver, turned into objects on the rank."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from orca.errors import ArgumentError

_SAME = {"learning_rate": "lr"}


@dataclass(frozen=True)
class TorchSpec:
    """A model, optimizer and loss, each an object, a class or a creator function.

    A model and an optimizer given as objects are pickled in one piece, so that on the rank the optimizer
    still holds the very parameters of the model.
    """

    model: Any
    optimizer: Any = None
    loss: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    train_step: Callable[..., Any] | None = None
    precision: str = "fp32"
    sync_batchnorm: bool = False
    sync_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the backend's synchronization strategy."""
    scheduler_creator: Callable[..., Any] | None = None
    scheduler_step: str = "epoch"

    def travels(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer, "loss": self.loss, "train_step": self.train_step}

    def make_model(self) -> nn.Module:
        model = self.model if isinstance(self.model, nn.Module) else _create(self.model, self.config)
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                f"model= gave a {type(model).__name__}; expected a torch.nn.Module. Let the creator return the module."
            )
        return model

    def make_optimizer(self, model: nn.Module) -> Any:
        """The optimizer, or for a custom step a dict of several."""
        if self.optimizer is None or isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer
        optimizer: Any
        if inspect.isclass(self.optimizer):
            parameters = inspect.signature(self.optimizer).parameters
            named = {_SAME.get(key, key): value for key, value in self.config.items()}
            chosen = {key: value for key, value in named.items() if key in parameters}
            optimizer = cast(Any, self.optimizer)(model.parameters(), **chosen)
        elif isinstance(self.optimizer, functools.partial) and inspect.isclass(self.optimizer.func):
            optimizer = self.optimizer(model.parameters())
        else:
            optimizer = self.optimizer(*(model, self.config)[: max(1, min(2, _positional(self.optimizer)))])
        if self.train_step is not None and isinstance(optimizer, dict):
            if optimizer and all(isinstance(value, torch.optim.Optimizer) for value in optimizer.values()):
                return optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                f"optimizer= gave a {type(optimizer).__name__}; expected a torch.optim.Optimizer. "
                "A creator has the form fn(model, config)"
                + (" or returns a dict of them by name." if self.train_step is not None else ".")
            )
        return optimizer

    def make_loss(self) -> Callable[..., Any] | None:
        loss: Any = self.loss
        if inspect.isclass(loss):
            loss = cast(Any, loss)()
        elif loss is not None and not isinstance(loss, nn.Module):
            names = _names(loss)
            if _positional(loss) == 1 or names == ["config"]:
                loss = loss(self.config)
            elif names == []:
                loss = loss()
        _check_mean(loss)
        return loss  # type: ignore[no-any-return]

    def known_loss(self) -> Any:
        """Return the loss as it will be on the rank, also if a creator makes it; None if it cannot be made here."""
        try:
            return self.make_loss()
        except Exception:
            return None

    def input_count(self) -> int | None:
        """Return the number of arguments that the model's forward requires."""
        forward = getattr(self.model, "forward", None)
        if forward is None:
            return None
        return _positional(forward) - (1 if inspect.isclass(self.model) else 0)

    def check(self) -> None:
        if not (isinstance(self.model, nn.Module) or callable(self.model)):
            raise ArgumentError(
                f"model={self.model!r}: expected a torch.nn.Module, a class of one, or a function "
                "fn(config) that returns one."
            )
        if self.optimizer is not None and not (
            isinstance(self.optimizer, torch.optim.Optimizer) or callable(self.optimizer)
        ):
            raise ArgumentError(
                f"optimizer={self.optimizer!r}: expected a torch.optim.Optimizer, a class of one, or a "
                "function fn(model, config)."
            )
        if self.loss is not None and not callable(self.loss):
            raise ArgumentError(f"loss={self.loss!r}: expected a loss module, a class of one, or a function.")
        _check_mean(self.loss)
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ArgumentError(f'precision={self.precision!r}: expected "fp32", "bf16" or "fp16".')
        if self.train_step is not None and not callable(self.train_step):
            raise ArgumentError(f"train_step={self.train_step!r}: expected a function fn(step).")
        compression = self.sync_options.get("compression")
        if compression not in (None, "fp16", "bf16"):
            raise ArgumentError(f'compression={compression!r}: expected "fp16", "bf16" or None.')
        if isinstance(self.optimizer, torch.optim.Optimizer):
            self._check_bound()

    def _check_bound(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ArgumentError(
                "optimizer= is an object, but model= is a class or creator, so the optimizer cannot hold its "
                "parameters. Give the optimizer as a function fn(model, config)."
            )
        own = {id(parameter) for parameter in self.model.parameters()}
        held = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if any(id(parameter) not in own for parameter in held):
            raise ArgumentError(
                "optimizer= was made for the parameters of another model. Create it from model.parameters() of "
                "the model you pass, or give a function fn(model, config)."
            )


def _check_mean(loss: Any) -> None:
    reduction = getattr(loss, "reduction", "mean")
    if isinstance(loss, nn.Module) and reduction != "mean":
        raise ArgumentError(
            f'loss= has reduction={reduction!r}. Use reduction="mean": its value can be combined across workers.'
        )


def _positional(function: Any) -> int:
    """Return the number of arguments that a function requires."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(
        1
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )


def _create(creator: Any, config: dict[str, Any]) -> Any:
    """Call a class or creator: with the config if it takes one, with matching names for a class."""
    names = _names(creator) or []
    if inspect.isclass(creator):
        if names == ["config"]:
            return cast(Any, creator)(config)
        values = {"config": config, **config}
        return cast(Any, creator)(**{name: values[name] for name in names if name in values})
    return creator(config) if _positional(creator) or "config" in names else creator()


def _names(function: Any) -> list[str] | None:
    """Return the names of a function's parameters; None if they are unknown."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
