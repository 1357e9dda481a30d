"""Reductions: of all rows to one, or of the rows of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.errors import ArgumentError, DataError
from orca.tensorframes.cells import Array
from orca.tensorframes.frames.adapting import adapt, grouped
from orca.tensorframes.frames.base import Frame
from orca.tensorframes.matching import bind, check_reduction, feeds_of_reduction
from orca.tensorframes.programs.base import Program
from orca.tensorframes.programs.capturing import capture
from orca.tensorframes.steps import ReduceStep

_BLOCKS = ("_input",)
_PAIRS = ("_1", "_2")


def reduce_rows(fetches: Any, data: Any, initial_variables: bool = True, *, graph: Any = None, sess: Any = None) -> Any:
    """Reduce all rows to one, two rows at a time.

    The result ``x`` is that of column ``x``; the program has two inputs for it, ``x_1`` and ``x_2``, of the same dtype
    and shape. The operation must be associative. Neighboring rows are reduced first, many pairs at once; the order of
    rows is kept within a partition or shard, and of these among each other.

    Args:
        fetches: The program, as for `map_rows`.
        data: The data, as for `map_rows`.
        initial_variables: Initialize the variables, as for `map_rows`.
        graph: Where names are looked up, as for `map_rows`.
        sess: A session that has the values of the variables.

    Returns:
        The result; a list for a list of tensors, a dict for a dict or a function.

    Raises:
        ArgumentError: If an input is missing, or a result differs from its inputs in dtype or shape.
        DataError: If there are no rows, or a column does not fit.

    >>> import pyarrow as pa
    >>> int(reduce_rows(lambda x_1, x_2: {"x": x_1 + x_2}, pa.table({"x": [1, 2, 3]}))["x"])
    6
    """
    program, _ = capture(fetches, graph, None, initial_variables if sess is None else False, sess)
    frame = adapt(data)
    return _reduced(frame, program, _step(frame, program, pairs=True))


def reduce_blocks(
    fetches: Any, data: Any, initial_variables: bool = True, *, graph: Any = None, sess: Any = None
) -> Any:
    """Reduce all rows to one, a block at a time.

    The result ``x`` is that of column ``x``; the program has the input ``x_input`` for it, a block of any number of
    rows. It runs on blocks first, and then on blocks of their results, so the operation must not depend on how rows
    are divided into blocks: sums, minima and maxima do not.

    Args:
        fetches: The program, as for `map_rows`.
        data: The data, as for `map_rows`. Columns without a result are ignored.
        initial_variables: Initialize the variables, as for `map_rows`.
        graph: Where names are looked up, as for `map_rows`.
        sess: A session that has the values of the variables.

    Returns:
        The result; a list for a list of tensors, a dict for a dict or a function.

    Raises:
        ArgumentError: If an input is missing, or a result differs from its cells in dtype or shape.
        DataError: If there are no rows, or a column does not fit.

    >>> import pyarrow as pa
    >>> table = pa.table({"x": [1.0, 2.0, 3.0], "name": ["a", "b", "c"]})
    >>> float(reduce_blocks(lambda x_input: {"x": x_input.max(axis=0)}, table)["x"])
    3.0
    """
    program, _ = capture(fetches, graph, None, initial_variables if sess is None else False, sess)
    frame = adapt(data)
    return _reduced(frame, program, _step(frame, program, pairs=False))


def aggregate(
    fetches: Any,
    data: Any,
    initial_variables: bool = True,
    *,
    by: str | Sequence[str] | None = None,
    graph: Any = None,
    sess: Any = None,
) -> Any:
    """Reduce the rows of each key to one, as `reduce_blocks` does for all rows.

    Args:
        fetches: The program, as for `reduce_blocks`.
        data: Grouped data, ``df.groupBy("key")`` of Spark or ``df.groupby("key")`` of pandas; or any data, with `by`.
        initial_variables: Initialize the variables, as for `map_rows`.
        by: The columns of the keys.
        graph: Where names are looked up, as for `map_rows`.
        sess: A session that has the values of the variables.

    Returns:
        One row per key, with the columns of the keys and of the results, in the kind of the data. On a Spark DataFrame
        and on XShards it is lazy.

    Raises:
        ArgumentError: If an input is missing, or a result differs from its cells in dtype or shape.
        ColumnError: If a key or a result is not a column.
        DataError: If a column does not fit.

    >>> import pyarrow as pa
    >>> table = pa.table({"key": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
    >>> aggregate(lambda x_input: {"x": x_input.sum(axis=0)}, table, by="key").to_pydict()
    {'key': ['a', 'b'], 'x': [2.0, 4.0]}
    """
    program, _ = capture(fetches, graph, None, initial_variables if sess is None else False, sess)
    frame, groups, keys = grouped(data, by)
    step = _step(frame, program, pairs=False, keys=keys)
    return frame.aggregate(step) if groups is None else groups.aggregate(step)


def _step(frame: Frame, program: Program, pairs: bool, keys: tuple[str, ...] = ()) -> ReduceStep:
    suffixes = _PAIRS if pairs else _BLOCKS
    columns = frame.columns()
    names = program.names
    if names is None:
        # The results of a function are known after it was bound; until then its parameters tell them.
        stems = [one.name.removesuffix(suffixes[0]) for one in program.inputs if one.name.endswith(suffixes[0])]
        names = tuple(stems)
    for key in keys:
        if key in names:
            raise ArgumentError(f"The result {key!r} is a key of the groups. Give it another name.")
    if not names:
        raise ArgumentError(
            f"A reduction has the inputs {' and '.join('x' + one for one in suffixes)} for its result x; fetches= "
            f"has {', '.join(one.name for one in program.inputs) or 'none'}."
        )
    feeds = feeds_of_reduction(program, names, columns, suffixes)
    bound = bind(program, feeds, rows=pairs)
    results = {one.name for one in bound.outputs}
    if results != set(names):
        extra, missing = sorted(results - set(names)), sorted(set(names) - results)
        raise ArgumentError(
            f"The result {extra[0]!r} has no input {extra[0] + suffixes[0]!r}." if extra else
            f"The input {missing[0] + suffixes[0]!r} belongs to the result {missing[0]!r}, which the function does not "
            "return."
        )  # fmt: skip
    check_reduction(bound, feeds, suffixes[0])
    return ReduceStep(bound, tuple(feeds), pairs=pairs, keys=keys)


def _reduced(frame: Frame, program: Program, step: ReduceStep) -> Any:
    tables = frame.reduce(step)
    last = step.again()
    rows = [row for table in tables for row in last.rows_in(table)]
    if not rows:
        raise DataError("The data has no rows, so there is nothing to reduce.")
    values = dict(zip((one.name for one in last.outputs), last.join(rows), strict=True))
    results: dict[str, Any] = {name: _plain(value) for name, value in values.items()}
    if program.form == "dict":
        return results
    ordered = [results[name] for name in program.names or ()]
    return ordered[0] if program.form == "one" else ordered


def _plain(value: Array) -> Any:
    """Return a single value as a scalar."""
    array = np.asarray(value)
    return array[()] if array.ndim == 0 else array
