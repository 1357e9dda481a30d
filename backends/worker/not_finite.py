"""Finds nan and infinite values in the rows of a rank, once a loss is nan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from orca.errors import listed
from orca.shards.feed import Batch, Rows
from orca.shards.tree import Tree, leaves, row_count


def where_not_finite(rows: Rows, names: Sequence[str] = ()) -> str:
    """Name the features and labels with nan or infinite values and the first row of each; "" if there are none.

    `names` are those of the features' columns, if features are columns.
    """
    return _described(rows.views(0, len(rows)), rows.first, names)


def batch_not_finite(batch: Batch, names: Sequence[str] = ()) -> str:
    """Name the features and labels of one step's rows with nan or infinite values; rows are counted in the batch."""
    return _described([batch.data], 0, names)


def _described(parts: Iterable[Tree], start: int, names: Sequence[str]) -> str:
    first: dict[str, int] = {}
    for part in parts:
        for name, leaf in leaves(part if isinstance(part, dict) else {"x": part}):
            for column, row in _columns(np.asarray(leaf)):
                first.setdefault(_name(name, column, leaf, names), start + row)
        start += row_count(part)
    return listed((f"nan or inf in {name} (first in row {row})" for name, row in first.items()), most=5)


def _columns(array: np.ndarray[Any, Any]) -> list[tuple[int | None, int]]:
    """Return the columns of a matrix with nan or inf, each with the first such row; None stands for another array."""
    if array.dtype.kind not in "fc":
        return []
    bad = ~np.isfinite(array)
    if array.ndim == 2:
        return [(int(column), int(np.argmax(bad[:, column]))) for column in np.flatnonzero(bad.any(axis=0))]
    by_row = bad.reshape(len(array), -1).any(axis=1)
    return [(None, int(np.argmax(by_row)))] if by_row.any() else []


def _name(name: str, column: int | None, leaf: Any, names: Sequence[str]) -> str:
    part, _, inner = name.partition(".")
    if part == "x":
        if not inner and column is not None and len(names) == leaf.shape[1]:
            return f"column {names[column]!r}"
        if column is None and len(names) == 1 and not inner:
            return f"column {names[0]!r}"
        if inner.isdigit() and int(inner) < len(names) and leaf.ndim == 1:
            return f"column {names[int(inner)]!r}"
    label = {"x": "the features", "y": "the labels", "w": "the weights"}.get(part, part) + (
        f" {inner}" if inner else ""
    )
    return label if column is None or leaf.shape[1] == 1 else f"column {column} of {label}"
