"""Checks of single arguments: each takes a name and a value, and returns the value or raises what was expected."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
import re
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import date
from typing import Any, ParamSpec, TypeAlias, TypeVar

from orca.errors import ArgumentError, DataError, UnknownArgumentError, suggest

Check: TypeAlias = Callable[[str, Any], Any]
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
LARGEST = 2**63 - 1
"""The largest count: what an index of an array can be."""

_SIZE = re.compile("[1-9][0-9]*[kmgt]?b?", re.IGNORECASE)
_COUNTED = {"CPU": 1, "GPU": 0}
"""Resources that are integers, with the smallest amount."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100


def shown(value: object) -> str:
    """Return a value as a short text of one line, for messages."""
    text = " ".join(_REPR.repr(value).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def wrong(name: str, value: object, expected: str) -> ArgumentError:
    """Return the error for an argument with a wrong value."""
    return ArgumentError(f"{name}={shown(value)}: expected {expected}.")


# Several arguments


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def named(name: str, check: Check) -> Check:
    """Return a check for a field that users know by another name."""
    return lambda _, value: check(name, value)


def check_fields(instance: object, **checks: Check) -> None:
    """Check fields of a frozen data class, in its `__post_init__`, and store what the checks return."""
    for name, check in checks.items():
        object.__setattr__(instance, name, check(name, getattr(instance, name)))


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function raise an UnknownArgumentError, with a suggestion, for an argument that it does not have.

    >>> known_arguments(lambda epochs=1: epochs)(epoch=3)
    Traceback (most recent call last):
    ...
    orca.errors.UnknownArgumentError: <lambda>() has no argument epoch=. Did you mean 'epochs'?
    """
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind in by_name and p.name != "self"]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                hint = suggest(name, names) or f" Arguments: {', '.join(names)}."
                raise UnknownArgumentError(f"{function.__name__}() has no argument {name}=.{hint}")
        return function(*args, **kwargs)

    return call


# Numbers and flags


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False, also numpy's."""
    kind = type(value)
    if isinstance(value, bool) or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")):
        return bool(value)
    raise wrong(name, value, "True or False")


def check_shuffle(name: str, value: Any) -> bool | str:
    """Return `value` if it names an order of rows: True, False or "global"."""
    if isinstance(value, str) and value == "global":
        return value
    try:
        return check_flag(name, value)
    except ArgumentError:
        raise wrong(name, value, 'True, False or "global"') from None


def check_count(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Return `value` as an integer of at least `least`."""
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise wrong(name, value, f"an integer of at least {least}")
    if count > most:
        raise wrong(name, value, f"an integer of at most {most}")
    return count


def check_number(name: str, value: Any, least: float = -math.inf, expected: str = "a number") -> float:
    """Return `value` as a finite float of at least `least`."""
    number = _finite(value)
    if number is None or number < least:
        raise wrong(name, value, expected)
    return number


def check_limit(name: str, value: Any) -> float | None:
    """Return `value` as a float above 0, or None."""
    if value is None:
        return None
    number = _finite(value)
    if number is None or number <= 0:
        raise wrong(name, value, "a number above 0")
    return number


def check_range(name: str, value: Any) -> tuple[float, float] | None:
    """Return a range (min, max), or None; a single number n means (-n, n)."""
    if value is None:
        return None
    if isinstance(value, tuple | list) and len(value) == 2:
        low, high = map(_finite, value)
    else:
        high = _finite(value)
        low = None if high is None else -high
    if low is None or high is None or not low < high:
        raise wrong(name, value, "a number above 0 or a pair (min, max)")
    return low, high


def check_classes(name: str, value: Any) -> dict[int, float] | None:
    """Return weights by class number, or None."""
    if value is None:
        return None
    weights: dict[int, float] = {}
    for key, weight in value.items() if isinstance(value, Mapping) else ():
        label, number = _finite(key), _finite(weight)
        if label is None or label < 0 or label != int(label) or number is None or number < 0:
            weights.clear()
            break
        weights[int(label)] = number
    if not weights:
        raise wrong(name, value, "a dict of class numbers and weights, such as {0: 1.0, 1: 5.0}")
    return weights


def check_resources(name: str, value: Any) -> dict[str, float] | None:
    """Return amounts by the name of a resource, or None.

    >>> check_resources("resources_per_worker", {"gpu": 1})
    Traceback (most recent call last):
    ...
    orca.errors.ArgumentError: resources_per_worker={'gpu': 1}: the name is written "GPU".
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise wrong(name, value, 'a dict of names and amounts, such as {"CPU": 2, "GPU": 1}')
    amounts: dict[str, float] = {}
    for key, amount in value.items():
        if not isinstance(key, str) or not key.strip():
            raise wrong(name, value, 'the names of resources as keys, such as {"CPU": 2, "GPU": 1}')
        if key not in _COUNTED and key.upper() in _COUNTED:
            raise ArgumentError(f'{name}={shown(value)}: the name is written "{key.upper()}".')
        if key in ("memory", "object_store_memory"):
            raise ArgumentError(f"{name}={shown(value)}: {key} cannot be reserved. Expected CPU, GPU or other names.")
        if key in _COUNTED:
            amounts[key] = check_count(f"{name}[{key!r}]", amount, least=_COUNTED[key])
            continue
        number = _finite(amount)
        if number is None or number <= 0 or (number > 1 and number != int(number)):
            raise wrong(f"{name}[{key!r}]", amount, "an integer above 0, or a fraction of 1")
        amounts[key] = number
    return amounts


def check_size(name: str, value: Any) -> str:
    """Return a size in bytes such as "2g" as it is written."""
    if not isinstance(value, str) or not _SIZE.fullmatch(value.strip()):
        raise wrong(name, value, 'a size such as "2g" or "512m"')
    return value


def _finite(value: Any) -> float | None:
    """Return a number as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


# Text, paths and columns


def check_text(name: str, value: Any, expected: str = "a name") -> str:
    """Return `value` if it is a text that is not empty."""
    if isinstance(value, str) and value.strip():
        return value
    raise wrong(name, value, expected)


def check_choice(name: str, value: Any, choices: Sequence[str], also: str = "") -> str:
    """Return `value` if it is one of the texts `choices`."""
    if isinstance(value, str) and value in choices:
        return value
    quoted = [f'"{choice}"' for choice in choices] + ([also] if also else [])
    listed = " or ".join(part for part in (", ".join(quoted[:-1]), quoted[-1]) if part)
    hint = suggest(value, choices) if isinstance(value, str) else ""
    raise ArgumentError(f"{wrong(name, value, listed)}{hint}")


def check_path(name: str, value: Any, expected: str = "a path") -> str:
    """Return a path, local or an fsspec URL, as text.

    >>> check_path("path", "")
    Traceback (most recent call last):
    ...
    orca.errors.ArgumentError: path='': expected a path.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or "\0" in path or not path.rpartition("://")[2].strip("/ "):
        raise wrong(name, value, expected)
    return path


def check_folder(name: str, value: Any) -> str | None:
    """Return the path of a folder, local or an fsspec URL, or None.

    >>> check_folder("model_dir", "runs/first")
    'runs/first'
    """
    return None if value is None else check_path(name, value, "the path of a folder, or None")


def check_columns(name: str, value: Any) -> Any:
    """Return one column's name or a list of names, in which a list is a group of columns."""
    if _is_column(value):
        return value
    if isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray | Mapping | Set):
        columns = value if isinstance(value, list | tuple) else list(value)
        if len(columns) and all(_is_column(entry) or _is_group(entry) for entry in columns):
            return columns
    raise wrong(name, value, "the name of a column or a list of names")


def check_any_columns(name: str, value: Any) -> Any:
    """Return columns as `check_columns` does; None and an empty list stand for no column."""
    is_empty = value is None or (isinstance(value, list | tuple) and not value)
    return value if is_empty else check_columns(name, value)


def check_names(name: str, value: Any) -> Any:
    """Return one column's name or a list of names; several columns of pandas may have a tuple as their name."""
    if isinstance(value, str) and value:
        return value
    if _is_column(value):
        return [value]
    columns = check_columns(name, value)
    if any(isinstance(entry, list) for entry in columns):
        raise wrong(name, value, "the name of a column or a list of names")
    return columns


def _is_column(value: object) -> bool:
    # pandas numbers the columns of files without a header.
    if isinstance(value, str):
        return value != ""
    return isinstance(value, numbers.Integral | date) and not isinstance(value, bool)


def _is_group(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_column, value))


# Objects


def check_mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """Return `value` if it is a dict or another mapping."""
    if not isinstance(value, Mapping):
        raise wrong(name, value, "a dict")
    return value


def check_data(name: str, value: Any) -> Any:
    """Return `value` unless it is something that cannot hold rows."""
    if value is None or isinstance(value, numbers.Number | bytes | bytearray):
        raise DataError(f"{name}={shown(value)}: expected data with rows, such as arrays, a DataFrame or XShards.")
    return value


def check_example(name: str, value: Any) -> Any:
    """Return `value` if it has the form of a model's inputs: an array, or a list, tuple or dict of arrays."""
    if isinstance(value, list | tuple | dict) or hasattr(value, "shape"):
        return value
    raise wrong(name, value, "a few rows of input: an array, or a list or dict of arrays")


def check_function(name: str, value: F, form: str, counts: Sequence[int] = (1,)) -> F:
    """Return `value` if it can be called with one of these numbers of arguments; `form` shows how."""
    if not callable(value):
        raise wrong(name, value, f"a function {form}")
    if not any(takes(value, count) for count in counts):
        raise ArgumentError(f"{name}= has the parameters {inspect.signature(value)}; expected a function {form}.")
    return value


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with this number of positional arguments; True if nobody can know."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
