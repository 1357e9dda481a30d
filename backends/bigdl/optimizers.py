"""BigDL's optim methods as one torch optimizer: each parameter group has its own formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.lbfgs import LBFGSOptimizer
from orca.errors import ArgumentError, listed, suggest
from orca.optim_methods import LBFGS, METHODS, OptimMethod

State = dict[str, Any]
Group = dict[str, Any]


class OptimMethods(torch.optim.Optimizer):  # type: ignore[misc]
    """Updates each parameter by the formula of its group, whose option "formula" names the optim method.

    Everything is kept in group options and in tensors per parameter, so that every synchronization strategy can split,
    save and restore it. The learning rate "lr" of a group is set before each step, see `Rates`.
    """

    elementwise = True

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            update = _FORMULAS[group["formula"]]
            for value in group["params"]:
                if value.grad is not None:
                    update(value, value.grad, self.state[value], group)
        return loss


def _sgd(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    if group["weightdecay"]:
        grad = grad.add(value, alpha=group["weightdecay"])
    momentum = group["momentum"]
    if momentum:
        if "direction" not in state:
            direction = state["direction"] = grad.clone()
        else:
            direction = state["direction"]
            direction.mul_(momentum).add_(grad, alpha=1 - group["dampening"])
        grad = grad.add(direction, alpha=momentum) if group["nesterov"] else direction
    value.add_(grad, alpha=-group["lr"])


def _count(state: State) -> int:
    """Count a step of a parameter, from 1. A tensor, as torch's own optimizers have it."""
    if "step" not in state:
        state["step"] = torch.zeros(())
    state["step"] += 1
    return int(state["step"])


def _zeros(state: State, like: torch.Tensor, *names: str) -> list[Any]:
    """Return tensors of the state, which begin with zeros."""
    for name in names:
        if name not in state:
            state[name] = torch.zeros_like(like, memory_format=torch.preserve_format)
    return [state[name] for name in names]


def _adam(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    step = _count(state)
    mean, square = _zeros(state, value, "mean", "square")
    beta1, beta2 = group["beta1"], group["beta2"]
    mean.mul_(beta1).add_(grad, alpha=1 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    # BigDL adds epsilon to the root before the correction, torch after it.
    size = group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    value.addcdiv_(mean, square.sqrt().add_(group["epsilon"]), value=-size)


def _adam_weight_decay(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    mean, square = _zeros(state, value, "mean", "square")
    beta1, beta2 = group["beta1"], group["beta2"]
    mean.mul_(beta1).add_(grad, alpha=1 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    direction = mean / square.sqrt().add_(group["epsilon"])
    if group["weight_decay"]:
        direction.add_(value, alpha=group["weight_decay"])
    value.add_(direction, alpha=-group["lr"])


def _adagrad(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    if group["weightdecay"]:
        grad = grad.add(value, alpha=group["weightdecay"])
    (total,) = _zeros(state, value, "total")
    total.addcmul_(grad, grad)
    value.addcdiv_(grad, total.sqrt().add_(1e-10), value=-group["lr"])


def _rmsprop(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    (square,) = _zeros(state, value, "square")
    square.mul_(group["decayrate"]).addcmul_(grad, grad, value=1 - group["decayrate"])
    value.addcdiv_(grad, square.sqrt().add_(group["epsilon"]), value=-group["lr"])


def _adadelta(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    square, change = _zeros(state, value, "square", "change")
    decay, epsilon = group["decayrate"], group["epsilon"]
    square.mul_(decay).addcmul_(grad, grad, value=1 - decay)
    delta = change.add(epsilon).sqrt_().div_(square.add(epsilon).sqrt_()).mul_(grad)
    value.sub_(delta)
    change.mul_(decay).addcmul_(delta, delta, value=1 - decay)


def _adamax(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    step = _count(state)
    mean, largest = _zeros(state, value, "mean", "largest")
    mean.mul_(group["beta1"]).add_(grad, alpha=1 - group["beta1"])
    torch.maximum(largest.mul_(group["beta2"]), grad.abs().add_(group["epsilon"]), out=largest)
    value.addcdiv_(mean, largest, value=-group["lr"] / (1 - group["beta1"] ** step))


def _ftrl(value: torch.Tensor, grad: torch.Tensor, state: State, group: Group) -> None:
    if "total" not in state:
        state["total"] = torch.full_like(value, group["initial_accumulator_value"])
    (linear,) = _zeros(state, value, "linear")
    total, rate, power = state["total"], group["lr"], -group["learningrate_power"]
    shrinkage, l1 = group["l2_shrinkage_regularization_strength"], group["l1_regularization_strength"]
    if shrinkage:
        grad = grad.add(value, alpha=2 * shrinkage)
    before = total.pow(power)
    after = total.addcmul_(grad, grad).pow(power)
    linear.add_(grad).addcmul_(before - after, value, value=1 / rate)
    quadratic = after.div(rate).add_(2 * group["l2_regularization_strength"])
    value.copy_((linear.sign() * l1 - linear) / quadratic)
    value.masked_fill_(linear.abs() <= l1, 0.0)


_FORMULAS: dict[str, Callable[[torch.Tensor, torch.Tensor, State, Group], None]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "ParallelAdam": _adam,
    "AdamWeightDecay": _adam_weight_decay,
    "Adagrad": _adagrad,
    "RMSprop": _rmsprop,
    "Adadelta": _adadelta,
    "Adamax": _adamax,
    "Ftrl": _ftrl,
}


def methods_of(optimizer: Any) -> dict[str, OptimMethod]:
    """Return an optim method, or a dict of them by the names of layers, as a dict; "" stands for all layers."""
    return {"": optimizer} if isinstance(optimizer, OptimMethod) else dict(optimizer)


def assigned(layer: Layer, methods: dict[str, OptimMethod]) -> list[tuple[str, list[nn.Parameter]]]:
    """Return the parameters of each method's layer.

    Raises:
        ArgumentError: If there is no layer of a name, or parameters have no method or several.
    """
    if set(methods) == {""}:
        return [("", list(layer.module.parameters()))]
    layers = layer.named()
    owners: dict[int, str] = {}
    parts = []
    for name in methods:
        if name not in layers:
            hint = suggest(name, layers) or f" Layers: {listed(layers)}."
            raise ArgumentError(f"optimizer= has a method for {name!r}, which is not a layer of the model.{hint}")
        values = list(layers[name].module.parameters())
        for value in values:
            other = owners.setdefault(id(value), name)
            if other != name:
                raise ArgumentError(f"optimizer= has two methods for the same weights: {other!r} and {name!r}.")
        parts.append((name, values))
    for name, part in layers.items():
        own = [key for key, value in part.module.named_parameters(recurse=False) if id(value) not in owners]
        if own:
            raise ArgumentError(
                f"optimizer= has no method for the layer {name!r} ({', '.join(own)}). Its methods are for "
                f"{listed(map(repr, methods))}; name a layer that contains it, or the layer itself."
            )
    return parts


def create(layer: Layer, optimizer: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer of a layer's module: one group for each method and each pair of penalties."""
    methods = methods_of(optimizer)
    named = dict(layer.module.named_parameters())
    penalties = {id(named[name]): (l1, l2) for name, l1, l2 in layer.regularizers()}
    groups: dict[tuple[int, float, float], Group] = {}
    for number, (name, values) in enumerate(assigned(layer, methods)):
        method = methods[name]
        for value in values:
            l1, l2 = penalties.get(id(value), (0.0, 0.0))
            group = groups.setdefault((number, l1, l2), _options(method, number) | {"params": [], "l1": l1, "l2": l2})
            group["params"].append(value)
    whole = any(isinstance(method, LBFGS) for method in methods.values())
    return (LBFGSOptimizer if whole else OptimMethods)(list(groups.values()))


def _options(method: OptimMethod, number: int) -> Group:
    """Return the options of a method's groups; "method" is its number, by which `Rates` finds its learning rate."""
    formula = next(kind.__name__ for kind in type(method).__mro__ if kind.__name__ in METHODS)
    plain = {name: value for name, value in method.arguments().items() if isinstance(value, bool | int | float)}
    rate = method.rate().at(0)
    return {**plain, "formula": formula, "method": number, "lr": rate}
