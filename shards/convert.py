"""Turns what users pass as data into XShards of {"x", "y"} on the engine of the context."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.engines.base import Engine
from orca.shards.tree import as_arrays, leaves, row_count, size_in_bytes, take_rows
from orca.shards.xshards import XShards

SHARD_BYTES = 256 << 20
"""Arrays of the driver are cut into shards of about this size; Spark cannot move records of 2 GB."""


def to_tree(data: Any, y: Any = None, argument: str = "data", need_labels: bool = True) -> Any:
    """Bring arrays into the form {"x": …, "y": …}: fit(x, y), (x, y) and dicts are understood."""
    if isinstance(data, dict) and "x" in data:
        tree = {key: data[key] for key in ("x", "y") if key in data}
        if y is not None:
            raise DataError(f'Labels were given twice: as y= and as the entry "y" of {argument}=.')
    elif y is not None:
        tree = {"x": data, "y": y}
    elif need_labels and isinstance(data, tuple | list) and len(data) == 2:
        tree = {"x": data[0], "y": data[1]}
    else:
        tree = {"x": data}
    if need_labels and "y" not in tree:
        raise DataError(
            f'{argument}= has no labels. Give arrays as fit(x, y), as a tuple (x, y) or as {{"x": …, "y": …}}; '
            f"received {_told(data)}."
        )
    for name, leaf in leaves(tree):
        if leaf is None or not (hasattr(leaf, "shape") or np.ndim(leaf) > 0):
            raise DataError(f"{name} of {argument}= is {leaf!r}; expected an array with rows. Received {_told(data)}.")
    tree = as_arrays(tree)
    for name, leaf in leaves(tree):
        if leaf.dtype == object:
            raise DataError(
                f"{name} of {argument}= has dtype object (rows of different lengths, or not numbers). "
                "Make it an array of numbers with one shape per row."
            )
    row_count(tree)
    return tree


def to_shards(
    data: Any, y: Any, engine: Engine, *, argument: str = "data", need_labels: bool = True, parts: int = 1
) -> XShards:
    """Return the data as XShards on `engine`, checked as far as can be done without touching all rows."""
    if isinstance(data, XShards):
        if y is not None:
            raise DataError(f'{argument}= is an XShards: its labels are the entry "y" of each shard, not y=.')
        _check_first(data, argument, need_labels)
        return data.to_engine(engine)
    tree = to_tree(data, y, argument, need_labels)
    rows = row_count(tree)
    if rows == 0 and need_labels:
        raise DataError(f"{argument}= has no rows.")
    count = max(1, min(max(parts, -(-size_in_bytes(tree) // SHARD_BYTES)), rows))
    cuts = [rows * index // count for index in range(count + 1)]
    pieces = [take_rows(tree, start, stop) for start, stop in itertools.pairwise(cuts)]
    return XShards(engine, engine.put(pieces))


def _check_first(shards: XShards, argument: str, need_labels: bool) -> None:
    """Check the form of the first shard where it lies: its rows stay there."""
    keys, told = shards.inspect(_form)
    if keys is None or "x" not in keys:
        if not need_labels:
            return
        raise DataError(
            f'{argument}= has shards of {told}; expected dicts {{"x": …, "y": …}}. '
            "Use transform_shard to bring them into that form."
        )
    if need_labels and "y" not in keys:
        raise DataError(f'The shards of {argument}= have no labels: entries {sorted(keys)}, expected "x" and "y".')


def _form(shard: Any) -> tuple[list[str] | None, str]:
    keys = [str(key) for key in shard] if isinstance(shard, dict) else None
    if keys is not None and "x" in keys:
        row_count({key: shard[key] for key in ("x", "y") if key in shard})
    return keys, _told(shard)


def _told(data: Any) -> str:
    if isinstance(data, dict):
        return f"a dict with the keys {sorted(map(str, data))}"
    if isinstance(data, tuple | list):
        return f"a {type(data).__name__} of {len(data)}"
    shape = getattr(data, "shape", None)
    return f"a {type(data).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
