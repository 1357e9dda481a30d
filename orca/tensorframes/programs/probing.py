"""Small arrays that show what a program returns for columns whose sizes are not known before their rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from orca.tensorframes.cells import TEXT, Array, Cell, Shape, widened

_SIZES = ((6, 4), (4, 9), (12, 12), (3, 3), (1, 2))
"""Pairs of sizes that stand for an unknown one: what differs between the two depends on it."""


def samples(cells: Sequence[Cell], rows: int, size: int, seed: int = 0) -> list[Array]:
    """Return random arrays of `rows` cells; unknown sizes become `size`."""
    rng = np.random.default_rng(seed)
    arrays = []
    for cell in cells:
        shape = (rows, *(size if one is None else one for one in cell.shape))
        if cell.dtype in TEXT:
            array = np.full(shape, "1" if cell.dtype == "string" else b"1", dtype=object)
        else:
            kind = np.dtype(cell.dtype)
            drawn = (
                rng.uniform(0.1, 2.0, shape)
                if kind.kind == "f"
                else rng.integers(0, 2 if kind.kind == "b" else 5, shape)
            )
            array = drawn.astype(kind)
        arrays.append(array)
    return arrays


def observed(cells: Mapping[str, Cell], call: Callable[[dict[str, Any]], Sequence[Array]], rows: bool) -> list[Shape]:
    """Return the shapes of a program's results, with None for sizes that depend on those of its inputs.

    Raises:
        Exception: What the program raises for each of the sizes that were tried.
    """
    failure: Exception | None = None
    for sizes in _SIZES:
        try:
            shapes = [[np.shape(value) for value in call(arrays)] for arrays in _inputs(cells, sizes, rows)]
        except Exception as error:
            failure = failure or error
            continue
        if all(len(one) == len(two) for one, two in zip(*shapes, strict=True)):
            return [widened(one, two) for one, two in zip(*shapes, strict=True)]
        failure = failure or ValueError("the rank of a result depends on the size of the input")
    assert failure is not None
    raise failure


def _inputs(cells: Mapping[str, Cell], sizes: Sequence[int], rows: bool) -> Iterator[dict[str, Any]]:
    for number, size in enumerate(sizes):
        if rows:
            arrays = [array[0] for array in samples(list(cells.values()), 1, size, number)]
        else:
            inner = [Cell(cell.dtype, cell.shape[1:]) for cell in cells.values()]
            # The number of rows differs from the other sizes, so that results show which they depend on.
            arrays = samples(inner, 5 + 2 * number, size, number)
        yield dict(zip(cells, arrays, strict=True))
