"""Assigns rows to the ports of a program, by position or by name, cast with a check of the range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orca.backends.graph.program import Array, Port
from orca.errors import DataError, suggest
from orca.shards.checks import check_range
from orca.shards.tree import Tree, leaves


def by_port(tree: Tree, ports: Sequence[Port], part: str) -> dict[str, Port]:
    """Return the port of each array of a structure, by the array's dotted name; `part` is "x" or "y"."""
    names = [name for name, _ in leaves(tree)]
    what = "input" if part == "x" else "label"
    if isinstance(tree, Mapping):
        named = {port.name: port for port in ports}
        missing = [name for name in named if name not in names]
        if missing and not (len(ports) == len(names) == 1):
            raise DataError(
                f"{part} of the data has no entry for the graph's {what} {missing[0]!r}; its entries are "
                f"{', '.join(names)}." + suggest(missing[0], names)
            )
        return {names[0]: ports[0]} if missing else named
    if len(names) != len(ports):
        raise DataError(
            f"{part} of the data has {len(names)} part{'s' if len(names) != 1 else ''}, but the graph has {len(ports)} "
            f"{what}{'s' if len(ports) != 1 else ''}: {', '.join(map(str, ports))}."
        )
    return dict(zip(names, ports, strict=True))


def arrays_for(tree: Tree, ports: Sequence[Port], part: str) -> list[Array]:
    """Return the arrays to feed to the ports, in their order."""
    if not ports:
        return []
    arrays = dict(leaves(tree))
    # The usual case: one array for one port.
    chosen = {"": ports[0]} if len(ports) == 1 and "" in arrays else by_port(tree, ports, part)
    found = {port.tensor: fitted(arrays[name], port, part) for name, port in chosen.items()}
    return [found[port.tensor] for port in ports]


def fitted(array: Any, port: Port, part: str = "x") -> Array:
    """Return an array in the type and rank of a port; a last axis of size one is added or removed."""
    array = np.asarray(array)
    shape = fitting_shape(array.shape[1:], port.shape)
    if shape is None:
        raise wrong_shape(array.shape[1:], port, part)
    if array.shape[1:] != shape:
        array = array.reshape(len(array), *shape)
    return cast(array, port.dtype, f"{part} of the data, for {port.name!r},")


def fitting_shape(shape: tuple[int, ...], expected: tuple[int | None, ...] | None) -> tuple[int, ...] | None:
    """Return the shape of a row after a last axis of size one was added or removed; None if it does not fit."""
    if expected is None:
        return shape
    if len(shape) == len(expected) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) + 1 == len(expected) and expected[-1] == 1:
        shape = (*shape, 1)
    fits = len(shape) == len(expected) and all(b is None or a == b for a, b in zip(shape, expected, strict=True))
    return shape if fits else None


def wrong_shape(shape: tuple[int, ...], port: Port, part: str) -> DataError:
    """Return the error about rows of another shape."""
    what = "input" if part == "x" else "label"
    expected = "?" if port.shape is None else f"({', '.join('any' if n is None else str(n) for n in port.shape)})"
    return DataError(
        f"{part} of the data has rows of shape {tuple(shape)} for the graph's {what} {port.name!r}, which expects rows "
        f"of shape {expected}."
    )


def cast(array: Array, dtype: str, name: str, first_row: int = 0) -> Array:
    """Return an array in another type; raise if a value would change to another one."""
    if dtype == "string":
        return array.astype(object) if array.dtype.kind in "US" else array
    target = np.dtype(dtype)
    if array.dtype == target:
        return array
    check_range(array, dtype, name, first_row)
    return array.astype(target)
