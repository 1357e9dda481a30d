"""What the user gave to `from_torch`, checked on the driver and turned into objects on the rank."""

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
    """What the backend's way to keep replicas in sync was asked to do."""

    def make_model(self) -> nn.Module:
        made = self.model if isinstance(self.model, nn.Module) else _create(self.model, self.config)
        if not isinstance(made, nn.Module):
            raise ArgumentError(
                f"model= gave a {type(made).__name__}; expected a torch.nn.Module. Let the creator return the module."
            )
        return made

    def make_optimizer(self, model: nn.Module) -> Any:
        """The optimizer, or for a custom step a dict of several."""
        if self.optimizer is None or isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer
        made: Any
        if inspect.isclass(self.optimizer):
            known = inspect.signature(self.optimizer).parameters
            named = {_SAME.get(key, key): value for key, value in self.config.items()}
            chosen = {key: value for key, value in named.items() if key in known}
            made = cast(Any, self.optimizer)(model.parameters(), **chosen)
        elif isinstance(self.optimizer, functools.partial) and inspect.isclass(self.optimizer.func):
            made = self.optimizer(model.parameters())
        else:
            made = self.optimizer(*(model, self.config)[: max(1, min(2, _positional(self.optimizer)))])
        if self.train_step is not None and isinstance(made, dict):
            if made and all(isinstance(value, torch.optim.Optimizer) for value in made.values()):
                return made
        if not isinstance(made, torch.optim.Optimizer):
            raise ArgumentError(
                f"optimizer= gave a {type(made).__name__}; expected a torch.optim.Optimizer. "
                "A creator has the form fn(model, config)"
                + (" or returns a dict of them by name." if self.train_step is not None else ".")
            )
        return made

    def make_loss(self) -> Callable[..., Any] | None:
        made: Any = self.loss
        if inspect.isclass(made):
            made = cast(Any, made)()
        elif made is not None and not isinstance(made, nn.Module):
            names = _names(made)
            if _positional(made) == 1 or names == ["config"]:
                made = made(self.config)
            elif names == []:
                made = made()
        _check_mean(made)
        return made  # type: ignore[no-any-return]

    def known_loss(self) -> Any:
        """The loss as it will be on the rank, also if a creator makes it; None if that cannot be told here."""
        try:
            return self.make_loss()
        except Exception:
            return None

    def input_count(self) -> int | None:
        """The number of arguments that the model's forward insists on."""
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
                "optimizer= was made for the parameters of another model. Make it from model.parameters() of "
                "the model you pass, or give a function fn(model, config)."
            )


def _check_mean(loss: Any) -> None:
    reduction = getattr(loss, "reduction", "mean")
    if isinstance(loss, nn.Module) and reduction != "mean":
        raise ArgumentError(
            f'loss= has reduction={reduction!r}. Use reduction="mean": it is what can be put together over workers.'
        )


def _positional(function: Any) -> int:
    """How many arguments a function insists on."""
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
        given = {"config": config, **config}
        return cast(Any, creator)(**{name: given[name] for name in names if name in given})
    return creator(config) if _positional(creator) or "config" in names else creator()


def _names(function: Any) -> list[str] | None:
    """The names of a function's parameters; None if it does not tell."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
