"""Finds the part of an object that cannot be pickled, so that the error can name it."""

from __future__ import annotations

import dis
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle

from orca.errors import NotPicklableError

_DEPTH = 12


class Wrapper(ABC):
    """An object of Orca around objects of users; messages name these as if there were no wrapper."""

    @abstractmethod
    def wrapped(self) -> Iterable[object]:
        """Return the objects of users."""


def pickled(value: object, name: str) -> bytes:
    """Pickle an object for a worker, or raise a NotPicklableError that names the part that cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(value, protocol=5))
    except Exception as error:
        raise not_picklable(value, name, error) from error


def check_picklable(**objects: Any) -> None:
    """Raise a NotPicklableError that names the attribute of the first object that cannot be sent to a worker."""
    for name, value in objects.items():
        error = _error(value)
        if error is not None:
            raise not_picklable(value, name, error) from error


def not_picklable(value: object, name: str, error: Exception) -> NotPicklableError:
    """Return the error for an object that cannot be pickled; `name` is the argument that it comes from."""
    path, culprit = _find(value, name, _DEPTH)
    is_function = isinstance(value, FunctionType | MethodType | functools.partial | Wrapper)
    advice = f"inside of the function {name}=" if is_function else f"give {name}= as a function"
    return NotPicklableError(
        f"{path} is a {type(culprit).__name__}, which cannot be pickled and so cannot be sent to the workers "
        f"({error}). Create it where it is used: {advice}, which runs on the worker."
    )


def _error(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None


def _find(value: Any, path: str, depth: int) -> tuple[str, Any]:
    """Descend to the smallest part that fails by itself."""
    if depth:
        for name, part in _parts(value):
            if _error(part) is not None:
                return _find(part, f"{path}{name}", depth - 1)
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object with the text that leads to them."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple | set):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, Wrapper):
        for part in value.wrapped():
            yield "", part
    elif isinstance(value, FunctionType):
        yield from parts_of_function(value)
    elif isinstance(value, MethodType):
        yield "'s object", value.__self__
    elif isinstance(value, functools.partial):
        yield "'s function", value.func
        yield from ((f"'s argument {index}", part) for index, part in enumerate(value.args))
        yield from ((f"'s argument {key}", part) for key, part in value.keywords.items())
    else:
        yield from _parts_of_object(value)


def parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses from outside of it."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # not yet bound
            continue
    for name in dict.fromkeys(_global_names(function.__code__)):
        if name in function.__globals__:
            yield f"'s global variable {name}", function.__globals__[name]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for name, part in [*zip(names[::-1], defaults[::-1], strict=False), *(function.__kwdefaults__ or {}).items()]:
        yield f"'s default of {name}", part
    for name, part in vars(function).items():
        yield f".{name}", part


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function's code uses, those of functions inside of it included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object."""
    attributes = dict(getattr(value, "__dict__", {}))
    # Models store layers in dicts with these names; users know the layers by their own.
    for group in ("_modules", "_parameters", "_buffers"):
        for key, part in (attributes.pop(group, None) or {}).items():
            yield f".{key}", part
    for key, part in attributes.items():
        yield f".{key}", part
