"""Nested dicts, lists and tuples of arrays, treated as one thing with rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from orca.errors import DataError


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array of a nested structure with its dotted name.

    >>> [name for name, _ in leaves({"x": [1, 2], "y": 3})]
    ['x.0', 'x.1', 'y']
    """
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{name}.{index}" if name else str(index))
    else:
        yield name, tree


def tree_map(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `fn` to the leaves of one or several trees of the same structure.

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    if isinstance(tree, dict):
        return {key: tree_map(fn, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        mapped = [tree_map(fn, *group) for group in zip(tree, *others, strict=True)]
        return mapped if isinstance(tree, list) else tuple(mapped)
    return fn(tree, *others)


def row_count(tree: Any) -> int:
    """Return the number of rows, the same in every array.

    >>> row_count({"x": np.zeros((4, 2)), "y": np.zeros(4)})
    4
    """
    counts: dict[str, int] = {}
    for name, leaf in leaves(tree):
        shape = getattr(leaf, "shape", None)
        if shape is None:
            raise DataError(f"{name or 'the shard'} is a {type(leaf).__name__}; expected an array with rows.")
        if len(shape) == 0:
            raise DataError(f"{name or 'the array'} is a single number (shape ()); expected one entry per row.")
        counts[name] = int(shape[0])
    if not counts:
        return 0
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name or 'data'}: {count}" for name, count in counts.items())
        raise DataError(f"The arrays have different numbers of rows ({told}). Give each the same number.")
    return next(iter(counts.values()))


def as_arrays(tree: Any) -> Any:
    """Turn leaves into arrays: anything that already has rows stays, scalars and lists of numbers convert."""
    return tree_map(lambda leaf: leaf if hasattr(leaf, "shape") else np.asarray(leaf), tree)


def take_rows(tree: Any, start: int, stop: int) -> Any:
    """Cut rows out of every array as views."""
    return tree_map(lambda leaf: leaf[start:stop], tree)


def join_rows(trees: list[Any]) -> Any:
    """Put trees of the same structure under each other, one copy."""
    if len(trees) == 1:
        return trees[0]
    return tree_map(lambda *parts: np.concatenate(parts), *trees)


def describe(tree: Any) -> dict[str, str]:
    """Say dtype and row shape of every array, for messages and for comparing shards.

    >>> describe({"x": np.zeros((4, 8, 8), "f4"), "y": np.zeros(4, "i8")})
    {'x': 'float32[8, 8]', 'y': 'int64[]'}
    """
    return {name: f"{leaf.dtype}{list(leaf.shape[1:])}" for name, leaf in leaves(tree)}


def size_in_bytes(tree: Any) -> int:
    """Add up the bytes of all arrays."""
    return sum(int(getattr(leaf, "nbytes", 0)) for _, leaf in leaves(tree))
