"""Adds gradients and an optimizer's operations to the copy of a graph; the user's optimizer object is only read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as v1
from tensorflow.python.framework import indexed_slices

from orca.core.arguments import shown, wrong
from orca.errors import ArgumentError, listed

_RATES = ("_lr_t", "_learning_rate_tensor", "_lr", "_learning_rate")


@dataclass(frozen=True)
class Applied:
    """The names of what was added."""

    train: str
    gradients: tuple[str, ...]
    trained: tuple[str, ...]
    """Names of the variables with a gradient."""
    slots: Sequence[Any]
    """The optimizer's own variables."""
    rates: dict[str, str]
    """Tensors of the learning rates, by the prefix of an optimizer's variables; "" for a single optimizer."""


class GivenGradients:
    """An optimizer whose gradients the user has computed: pairs (gradient, variable)."""

    def __init__(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.optimizer, self.pairs = optimizer, list(pairs)

    def compute_gradients(self, loss: Any, var_list: Any = None) -> list[Any]:
        """Return the pairs."""
        return self.pairs

    def apply_gradients(self, pairs: Any, **options: Any) -> Any:
        """Apply gradients with the optimizer itself."""
        return self.optimizer.apply_gradients(pairs, **options)


def check_optimizer(optimizer: Any) -> None:
    """Raise unless an optimizer is one of ``tf.train``, or a dict of them by prefix of variable names."""
    if optimizer is None:
        return
    if isinstance(optimizer, Mapping):
        if not optimizer or not all(isinstance(prefix, str) for prefix in optimizer):
            raise wrong("optimizer", optimizer, "a dict of optimizers by the prefix of variable names")
        for part in optimizer.values():
            check_optimizer(part)
        return
    if hasattr(optimizer, "compute_gradients") and hasattr(optimizer, "apply_gradients"):
        return
    names = {base.__module__.partition(".")[0] for base in type(optimizer).__mro__}
    if "keras" in names:
        raise ArgumentError(
            f"optimizer={shown(optimizer)} is a Keras optimizer, which does not work on graphs. Use one of tf.train, "
            "such as tf.train.AdamOptimizer(), or Estimator.from_keras."
        )
    raise wrong("optimizer", optimizer, "an optimizer of tf.train, such as tf.train.AdamOptimizer()")


def apply(
    loss: Any, optimizer: Any, original: Any, graph: Any, first: Sequence[Any], global_step: str | None
) -> Applied:
    """Add the gradients of a loss and their application to `graph`, a copy of `original`.

    Args:
        loss: The loss, in the copy.
        optimizer: The user's optimizer, or a dict of optimizers by prefix of variable names.
        original: The user's graph.
        graph: The copy, which is the default graph.
        first: What is computed before the variables change.
        global_step: The name of the variable that counts steps, if there is one.
    """
    before = {variable.op.name for variable in graph.get_collection("variables")}
    trainable = graph.get_collection("trainable_variables")
    by_name = {variable.op.name: variable for variable in graph.get_collection("variables")}
    groups = _groups(optimizer, trainable)
    prefixes = [prefix for prefix, _, _ in groups]
    mapped = [(_mapped(part, original, graph), variables) for _, part, variables in groups]
    pairs = _gradients(loss, mapped, trainable)
    if not pairs:
        raise ArgumentError(
            f"loss={loss.name!r} depends on no trainable variable. Trainable variables of the graph: "
            f"{listed([variable.op.name for variable in trainable], most=10) or 'none'}."
        )
    with v1.name_scope("orca_gradients/"):
        dense = {
            variable.op.name: v1.identity(_dense(gradient), name=f"gradient_{number}")
            for number, (gradient, variable) in enumerate(pairs)
        }
    operations = []
    step = None if global_step is None else by_name.get(global_step)
    with graph.control_dependencies(first):
        for number, (part, variables) in enumerate(mapped):
            chosen = [(dense[one.op.name], one) for one in variables if one.op.name in dense]
            if chosen:
                counted = {"global_step": step} if step is not None and not number else {}
                operations.append(part.apply_gradients(chosen, **counted))
    with v1.name_scope("orca_step/"):
        train = v1.group(*operations, name="train")
    slots = [variable for variable in graph.get_collection("variables") if variable.op.name not in before]
    tensors = {prefix: _rate(part) for prefix, (part, _) in zip(prefixes, mapped, strict=True)}
    rates = {prefix: tensor for prefix, tensor in tensors.items() if tensor is not None}
    return Applied(train.name, tuple(value.op.name for value in dense.values()), tuple(dense), slots, rates)


def _groups(optimizer: Any, trainable: Sequence[Any]) -> list[tuple[str, Any, list[Any]]]:
    """Return the prefix of each optimizer, itself and its variables; of several prefixes the longest counts."""
    if not isinstance(optimizer, Mapping):
        return [("", optimizer, list(trainable))]
    groups: dict[str, list[Any]] = {prefix: [] for prefix in optimizer}
    for variable in trainable:
        fitting = [prefix for prefix in optimizer if variable.op.name.startswith(prefix)]
        if not fitting:
            raise ArgumentError(
                f"optimizer= has no prefix for the variable {variable.op.name!r}; its prefixes are "
                f"{listed(map(repr, optimizer))}. Add one, or '' for all other variables."
            )
        groups[max(fitting, key=len)].append(variable)
    return [(prefix, optimizer[prefix], variables) for prefix, variables in groups.items() if variables]


def _gradients(loss: Any, mapped: Sequence[tuple[Any, list[Any]]], trainable: Sequence[Any]) -> list[Any]:
    if len(mapped) == 1:
        optimizer, variables = mapped[0]
        pairs = optimizer.compute_gradients(loss, var_list=variables) if variables else []
    else:
        pairs = list(zip(v1.gradients(loss, list(trainable)), trainable, strict=True)) if trainable else []
    return [(gradient, variable) for gradient, variable in pairs if gradient is not None]


def _dense(gradient: Any) -> Any:
    """Return a gradient as a dense tensor: the sums of sparse ones over workers would not be sparse."""
    return v1.convert_to_tensor(gradient) if isinstance(gradient, indexed_slices.IndexedSlices) else gradient


def _rate(optimizer: Any) -> str | None:
    """Return the tensor of an optimizer's learning rate, which exists once gradients were applied."""
    own = optimizer.optimizer if isinstance(optimizer, GivenGradients) else optimizer
    for name in _RATES:
        tensor = getattr(own, name, None)
        if isinstance(tensor, v1.Tensor):
            return str(tensor.name)
    return None


def _mapped(optimizer: Any, original: Any, graph: Any) -> Any:
    """Return a copy of an optimizer whose tensors are those of the copied graph, without any slot."""
    mapped = copy.copy(optimizer)
    for name, value in vars(optimizer).items():
        setattr(mapped, name, _element(value, original, graph))
    for name in ("_slots", "_non_slot_dict", "_deferred_slot_restorations"):
        if isinstance(getattr(mapped, name, None), dict):
            setattr(mapped, name, {})
    return mapped


def _element(value: Any, original: Any, graph: Any) -> Any:
    if isinstance(value, v1.Tensor | v1.Operation) and getattr(value, "graph", None) is original:
        return graph.as_graph_element(value.name)
    if isinstance(value, v1.Variable) and getattr(value, "graph", None) is original:
        named = {one.op.name: one for one in graph.get_collection("variables")}
        return named.get(value.op.name, value)
    if isinstance(value, indexed_slices.IndexedSlices):
        parts = (value.values, value.indices, value.dense_shape)
        return indexed_slices.IndexedSlices(*(_element(part, original, graph) for part in parts))
    if type(value) in (list, tuple):
        return type(value)(_element(part, original, graph) for part in value)
    if isinstance(value, v1.train.Optimizer):
        return _mapped(value, original, graph)
    if callable(value) and not isinstance(value, type) and not hasattr(value, "compute_gradients"):
        return _Mapped(value, lambda result: _element(result, original, graph))
    return value


class _Mapped:
    """A function of the user, such as that of a learning rate, whose tensors are looked up in the copy."""

    def __init__(self, function: Callable[[], Any], look_up: Callable[[Any], Any]) -> None:
        self._function, self._look_up = function, look_up

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self._look_up(self._function(*args, **more))
