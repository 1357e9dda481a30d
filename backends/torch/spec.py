"""The arguments of `from_torch`: checked on the driver, turned into objects on the rank."""

from __future__ import annotations

import copy
import functools
import inspect
import numbers
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from orca.backends.base import Inputs
from orca.core.arguments import check_choice, check_flag, check_function, shown, wrong
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
        _check_reduction(loss)
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

    def inspected_inputs(self) -> Inputs:
        """Return how many arguments the model's forward takes; a creator is called to find out."""
        model = self.model
        is_class = inspect.isclass(model)
        if not isinstance(model, nn.Module) and not is_class:
            model = _without_weights(model, self.config)
        forward = getattr(model, "forward", None)
        if forward is None:
            return Inputs()
        least, most = _positional(forward), _most_positional(forward)
        own = 1 if is_class else 0
        return Inputs(least - own, most=None if most is None else most - own)

    def check(self) -> None:
        _check_model(self.model, self.config)
        _check_optimizer(self.optimizer, self.config, self.train_step is not None)
        self._check_loss()
        if self.train_step is not None:
            check_function("train_step", self.train_step, "fn(step)")
        if self.scheduler_creator is not None:
            check_function("scheduler_creator", self.scheduler_creator, "fn(optimizer, config)", (1, 2))
        if not isinstance(self.scheduler_step, str) or self.scheduler_step != "batch":  # another name of "step"
            check_choice("scheduler_step", self.scheduler_step, ("epoch", "step"))
        if self.scheduler_creator is None and self.scheduler_step != "epoch":
            raise ArgumentError(f"scheduler_step={self.scheduler_step!r} needs a scheduler: give scheduler_creator=.")
        check_choice("precision", self.precision, ("fp32", "bf16", "fp16"))
        check_flag("sync_batchnorm", self.sync_batchnorm)
        self.check_options()
        if isinstance(self.optimizer, torch.optim.Optimizer):
            self._check_bound()

    def check_options(self) -> None:
        """Raise if an option of the synchronization strategy has a wrong value."""
        if self.sync_options.get("compression") is not None:
            check_choice("compression", self.sync_options["compression"], ("fp16", "bf16"), also="None")
        if "sharded" in self.sync_options:
            check_flag("sharded", self.sync_options["sharded"])

    def check_training(self) -> None:
        """Raise if the model cannot be trained."""

    def check_slices(self, workers: int) -> None:
        """Raise if the parameters cannot be split into slices, each with its own owner."""
        if self.train_step is not None:
            raise ArgumentError(
                'train_step= brings its own optimizer steps: use backend="torch_distributed" or "horovod".'
            )
        from orca.backends.torch.server_sync import check_optimizer

        if isinstance(self.optimizer, torch.optim.Optimizer | type):
            check_optimizer(self.optimizer)

    def _check_loss(self) -> None:
        """Raise if the loss, or what its class or creator returns, is not a function of outputs and targets."""
        if self.loss is None:
            return
        if not callable(self.loss):
            raise wrong("loss", self.loss, "a loss module, a class of one, or a function")
        try:
            loss = self.make_loss()
        except ArgumentError:
            raise
        except Exception as error:
            if inspect.isclass(self.loss):
                raise ArgumentError(f"loss= is a class that cannot be created without arguments: {error}") from error
            return  # a creator may need what only a rank has
        if not callable(loss):
            raise ArgumentError(f"loss= gave a {type(loss).__name__}; expected a loss module or a function.")
        if self.train_step is None:
            function = loss.forward if isinstance(loss, nn.Module) else loss
            check_function("loss", function, "fn(output, target)", (2,))

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


def _check_model(model: Any, config: Mapping[str, Any]) -> None:
    """Raise if this is neither a module nor a class or function that creates one from the config."""
    if isinstance(model, nn.Module):
        return
    expected = "a torch.nn.Module, a class of one, or a function fn(config) that returns one"
    if not callable(model) or (inspect.isclass(model) and not issubclass(model, nn.Module)):
        raise wrong("model", model, expected)
    if not inspect.isclass(model):
        check_function("model", model, "fn(config) that returns a torch.nn.Module", (0, 1))
        return
    missing = [name for name in _required(model) if name != "config" and name not in config]
    if missing:
        raise ArgumentError(
            f"model= is the class {model.__name__}, which needs {', '.join(f'{name}=' for name in missing)}: give "
            f'config={{"{missing[0]}": …}}, or a function fn(config) that returns the module.'
        )


def _check_optimizer(optimizer: Any, config: Mapping[str, Any], several: bool) -> None:
    """Raise if this is neither an optimizer nor a class or function that creates one."""
    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        return
    expected = "a torch.optim.Optimizer, a class of one, or a function fn(model, config)"
    if not callable(optimizer) or (inspect.isclass(optimizer) and not issubclass(optimizer, torch.optim.Optimizer)):
        raise wrong("optimizer", optimizer, expected)
    if inspect.isclass(optimizer):
        _check_values(optimizer, config)
    else:
        returned = " or a dict of them" if several else ""
        check_function("optimizer", optimizer, f"fn(model, config) that returns an optimizer{returned}", (1, 2))


def _check_values(optimizer: type, config: Mapping[str, Any]) -> None:
    """Raise if the config lacks an argument of the optimizer, or has one of another type than its default."""
    entries = {_SAME.get(key, key): (key, value) for key, value in config.items()}
    missing = [name for name in _required(optimizer)[1:] if name not in entries]
    if missing:
        raise ArgumentError(
            f"optimizer= is the class {optimizer.__name__}, which needs {', '.join(f'{name}=' for name in missing)}: "
            f'give config={{"{missing[0]}": …}}, or a function fn(model, config).'
        )
    for name, parameter in inspect.signature(optimizer).parameters.items():
        key, value = entries.get(name, (name, parameter.default))
        if isinstance(parameter.default, bool):
            fits, expected = isinstance(value, numbers.Real | np.bool_), "True or False"
        elif isinstance(parameter.default, int | float):
            fits, expected = _is_number(value), "a number"
        elif isinstance(parameter.default, tuple):
            fits = isinstance(value, tuple | list) and len(value) == len(parameter.default)
            expected = f"{len(parameter.default)} numbers such as {parameter.default}"
        else:
            continue
        if not fits:
            raise ArgumentError(f"config={{{key!r}: {shown(value)}}}: {optimizer.__name__} expects {expected}.")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real | torch.Tensor) and not isinstance(value, bool)


def _check_reduction(loss: Any) -> None:
    reduction = getattr(loss, "reduction", "mean")
    if isinstance(loss, nn.Module) and reduction not in ("mean", "sum"):
        raise ArgumentError(
            f'loss= has reduction={reduction!r}. Use reduction="mean" or "sum": such values can be combined across '
            "workers."
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


_ANY = 2**31


def _most_positional(function: Any) -> int | None:
    """Return the largest number of arguments by position; a large one if there is no limit."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return _ANY
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters
    )


def _without_weights(creator: Any, config: dict[str, Any]) -> Any:
    """Return a creator's model on the meta device, where it has no weights; None if it cannot be made so."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return _create(creator, copy.deepcopy(config))
    except Exception:
        return None
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _required(cls: type) -> list[str]:
    """Return the names of the arguments that a class requires."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


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
