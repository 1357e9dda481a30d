"""Plain Python functions of columns: what they are written with, their parameters and their results."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from orca.core.arguments import shown
from orca.core.pickling import parts_of_function
from orca.errors import ArgumentError, suggest
from orca.tensorframes.programs.base import Input

_ROOTS = {"tensorflow": "tensorflow", "keras": "tensorflow", "torch": "torch"}
_DEPTH = 4


def framework_of(function: Any) -> str:
    """Return what a function is written with, "numpy", "tensorflow" or "torch", by the names that it uses."""
    found = _frameworks(function, _DEPTH)
    if len(found) > 1:
        raise ArgumentError(
            f"fetches={shown(function)} uses both {' and '.join(sorted(found))}. Write it with one of them."
        )
    return next(iter(found), "numpy")


def _frameworks(value: Any, depth: int) -> set[str]:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    roots = [_root(str(module))]
    if not isinstance(value, ModuleType | FunctionType):
        roots += [_root(base.__module__) for base in type(value).__mro__]
    if any(name in _ROOTS for name in roots):
        return {_ROOTS[name] for name in roots if name in _ROOTS}
    if not depth:
        return set()
    if isinstance(value, functools.partial):
        return _frameworks(value.func, depth - 1)
    if isinstance(value, MethodType):
        return _frameworks(value.__func__, depth - 1)
    if not isinstance(value, FunctionType):
        return set()
    found = {_ROOTS[name] for name in _imported(value) if name in _ROOTS}
    for _, part in parts_of_function(value):
        found |= _frameworks(part, depth - 1)
    return found


def _root(module: str) -> str:
    """Return the package of a module; Orca's names of TensorFlow 1 count as TensorFlow."""
    return "tensorflow" if module.startswith("orca.tf1") else module.partition(".")[0]


def _imported(function: FunctionType) -> set[str]:
    """Return the packages that a function imports inside of it."""
    import dis

    return {_root(str(step.argval)) for step in dis.get_instructions(function.__code__) if step.opname == "IMPORT_NAME"}


def inputs_of(function: Callable[..., Any], feed: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the parameters of a function as inputs; one with a default value is fed only if `feed_dict` names it."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ArgumentError(
            f"fetches={shown(function)} does not say which parameters it has. Wrap it in a lambda."
        ) from None
    inputs = []
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise ArgumentError(
                f"fetches={shown(function)} has the parameter {one}. Each parameter is a column, by its name: write "
                'them out, such as lambda x, y: {"z": x + y}.'
            )
        if one.default is one.empty or one.name in feed:
            inputs.append(Input(one.name))
    names = [one.name for one in inputs]
    for name in feed:
        if name not in names:
            raise ArgumentError(
                f"feed_dict has {name!r}, which is not a parameter of the function." + suggest(name, names)
            )
    return tuple(inputs)


def results_of(function: object, value: Any) -> dict[str, Any]:
    """Return what a function has returned, which has to be a dict of columns; messages name the function."""
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) and name for name in value):
        label = function if isinstance(function, str) else shown(function)
        raise ArgumentError(
            f'fetches={label} returned {shown(value)}; expected a dict of columns, such as {{"z": x + y}}.'
        )
    return dict(value)
