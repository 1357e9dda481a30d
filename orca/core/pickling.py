"""Finds the attribute of an object that cannot be pickled, so that the error can name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle

from orca.errors import NotPicklableError

_DEPTH = 12


def check_picklable(**objects: Any) -> None:
    """Raise a NotPicklableError that names the attribute of the first object that cannot be sent to a worker."""
    for name, value in objects.items():
        error = _error(value)
        if error is None:
            continue
        path, culprit = _find(value, name, _DEPTH)
        raise NotPicklableError(
            f"{path} is a {type(culprit).__name__}, which cannot be pickled and so cannot be sent to the workers "
            f"({error}). Create it where it is used: give {name}= as a function, which runs on the worker."
        ) from error


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
    elif callable(value) and getattr(value, "__closure__", None):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__, strict=True):
            try:
                yield f"'s variable {name}", cell.cell_contents
            except ValueError:  # not yet bound
                continue
    else:
        attributes = dict(getattr(value, "__dict__", {}))
        # Models store layers in dicts with these names; users know the layers by their own.
        for group in ("_modules", "_parameters", "_buffers"):
            for key, part in (attributes.pop(group, None) or {}).items():
                yield f".{key}", part
        for key, part in attributes.items():
            yield f".{key}", part
