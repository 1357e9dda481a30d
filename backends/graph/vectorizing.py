"""Runs a graph of one row on many rows: vectorized, as a loop in the graph, or with one run per row.

``tf.vectorized_map`` replaces each operation by one on all rows. It is used without its own fallback to a loop, which
gives results of a wrong shape for some graphs. What it cannot convert runs in ``tf.map_fn``; that needs results of one
shape. Graphs whose results differ in shape from row to row run once per row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from orca.backends.graph.frozen import FrozenGraph, Runnable, Shape, feeds_of, import_with
from orca.backends.graph.program import Array

_RAGGED = (
    "Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "ListDiff", "StringSplit", "StringSplitV2",
    "DynamicPartition", "NonMaxSuppression", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5",
    "DecodeRaw", "DecodePaddedRaw", "SparseReshape", "UnicodeDecode", "UnicodeDecodeWithOffsets", "RegexFullMatchSplit",
)  # fmt: skip
"""Operations whose results have a shape that depends on values."""


@dataclass(frozen=True)
class RowGraph:
    """The graph of one row, and that of many rows, if there is one."""

    tier: str
    """"vectorized", "map_fn" or "row"."""
    row: Runnable
    many: Runnable | None
    shapes: tuple[Shape, ...]
    """The inferred shapes of one row's results."""

    def start(self, threads: int) -> Callable[[Sequence[Array]], list[Any]]:
        """Return a function of arrays with one entry per row. Each result is an array, or a list of one per row."""
        if self.many is None:
            return _by_row(self.row, threads)
        many = self.many.start(threads)
        if self.tier == "vectorized":
            return lambda arrays: list(many(*arrays))
        single: list[Any] = []

        def run(arrays: Sequence[Array]) -> list[Any]:
            try:
                return list(many(*arrays))
            except v1.errors.InvalidArgumentError:
                # The results may differ in shape; row by row this is no error, and any other is raised again.
                single[:] = single or [_by_row(self.row, threads)]
                results: list[Any] = single[0](arrays)
                return results

        return run


def _by_row(row: Runnable, threads: int) -> Callable[[Sequence[Array]], list[Any]]:
    call = row.start(threads)

    def run(arrays: Sequence[Array]) -> list[Any]:
        # Without inputs there is one result, for all rows.
        rows = zip(*arrays, strict=True) if arrays else [()]
        results = [call(*values) for values in rows]
        return [[_cell(value) for value in column] for column in zip(*results, strict=True)]

    return run


def _cell(value: Any) -> Array:
    """Return a result as an array; numpy would cut zeros off the end of bytes."""
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)


def row_graph(
    frozen: FrozenGraph,
    shapes: Mapping[str, Shape],
    constants: Mapping[str, Any],
    accept: Callable[[RowGraph], bool],
) -> RowGraph:
    """Choose how to run a graph of one row on many.

    Args:
        frozen: The graph.
        shapes: The shape of each input's cell.
        constants: Values of inputs that no column feeds.
        accept: Whether a graph gives the results of single rows; tried with both ways to run many rows at once.
    """
    single = import_with(frozen, shapes, constants)
    alone = RowGraph("row", single.runnable, None, single.shapes)
    if not shapes or _is_ragged(frozen, single.shapes, shapes, constants):
        return alone
    for tier, loop in (("vectorized", _vectorized), ("map_fn", _mapped)):
        try:
            with _quiet():
                many = _many(frozen, shapes, constants, loop)
        except Exception:  # the converter raises errors of all kinds for what it does not know
            continue
        chosen = RowGraph(tier, single.runnable, many, single.shapes)
        if accept(chosen):
            return chosen
    return alone


def _is_ragged(
    frozen: FrozenGraph, inferred: Sequence[Shape], shapes: Mapping[str, Shape], constants: Mapping[str, Any]
) -> bool:
    """Whether the shapes of results depend on values, as far as the graph tells."""
    graph_def = v1.GraphDef.FromString(frozen.graph)
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    if not any(node.op in _RAGGED for node in nodes):
        return False
    if all(_is_known(shape) for shape in inferred):
        return False
    for size in (6, 4, 12, 3, 1):
        known = {name: None if shape is None else tuple(size if one is None else one for one in shape)
                 for name, shape in shapes.items()}  # fmt: skip
        try:
            return not all(_is_known(shape) for shape in import_with(frozen, known, constants).shapes)
        except ValueError:
            continue
    return True


def _is_known(shape: Shape) -> bool:
    return shape is not None and None not in shape


def _many(frozen: FrozenGraph, shapes: Mapping[str, Shape], constants: Mapping[str, Any], loop: Any) -> Runnable:
    graph = v1.Graph()
    with graph.as_default():
        graph_def = v1.GraphDef.FromString(frozen.graph)
        _, fixed = feeds_of(frozen, {}, constants)
        kinds = {one.name: v1.as_dtype(one.dtype) for one in frozen.inputs}
        feeds = [
            v1.placeholder(kinds[name], None if shape is None else (None, *shape)) for name, shape in shapes.items()
        ]

        def row(values: Sequence[Any]) -> list[Any]:
            cells = {f"{name}:0": value for name, value in zip(shapes, values, strict=True)}
            elements = v1.import_graph_def(
                graph_def, input_map={**cells, **fixed}, return_elements=list(frozen.outputs), name="row"
            )
            return [v1.identity(element) for element in elements]

        outputs = loop(row, feeds, [v1.as_dtype(name) for name in frozen.dtypes])
        outputs = [v1.identity(output) for output in outputs]
        tables: list[str] = []
        if frozen.tables:
            # Tables are found by name, so that one copy of their operations fills those of all others.
            filled = v1.import_graph_def(graph_def, return_elements=list(frozen.tables), name="tables")
            tables = [operation.name for operation in filled]
        return Runnable(
            graph.as_graph_def().SerializeToString(deterministic=True),
            tuple(tensor.name for tensor in feeds),
            tuple(tensor.name for tensor in outputs),
            tuple(tables),
        )


def _vectorized(row: Callable[..., Any], feeds: Sequence[Any], dtypes: Sequence[Any]) -> Sequence[Any]:
    results: Sequence[Any] = tf.vectorized_map(row, list(feeds), fallback_to_while_loop=False)
    return results


def _mapped(row: Callable[..., Any], feeds: Sequence[Any], dtypes: Sequence[Any]) -> Sequence[Any]:
    results: Sequence[Any] = tf.map_fn(row, list(feeds), fn_output_signature=list(dtypes))
    return results


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the converter, which logs pages about what it cannot convert."""
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
