"""New columns: a program on each row, or on blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.core.arguments import check_count, check_flag, wrong
from orca.errors import ArgumentError
from orca.tensorframes.frames.adapting import adapt
from orca.tensorframes.frames.base import Frame
from orca.tensorframes.matching import Columns, bind, check_new, feeds_by_name
from orca.tensorframes.programs.base import Program
from orca.tensorframes.programs.capturing import capture
from orca.tensorframes.steps import BlockRows, BlockStep, RowStep


def map_rows(
    fetches: Any,
    data: Any,
    feed_dict: Mapping[Any, Any] | None = None,
    initial_variables: bool = True,
    *,
    graph: Any = None,
    sess: Any = None,
) -> Any:
    """Run a program on each row, and add a column for each of its results.

    Rows may have arrays of different lengths. Where possible many rows are computed at once; the results are the same
    up to rounding. The new columns come first, sorted by name. On a Spark DataFrame and on XShards this is lazy, but
    the program is captured at the call: changes to the graph or to variables have no effect later.

    Args:
        fetches: The program: a tensor of a TensorFlow graph, or a list or dict of tensors; names of tensors; or a
            function whose parameters are columns and that returns a dict of new columns, written with numpy, TensorFlow
            or torch. A tensor's column has the name of its operation, a placeholder reads the column of its name.
        data: A Spark, pandas or polars DataFrame, an Arrow table, XShards of them, or a Ray Dataset.
        feed_dict: Columns, by name, for placeholders or parameters that have another name; any other value is a
            constant for all rows.
        initial_variables: Initialize the variables of the graph. If False they have the values of `sess`, or of the
            default session.
        graph: Where names are looked up: the path of a frozen graph (.pb) or of a SavedModel, or a ``tf.Graph``.
        sess: A session that has the values of the variables.

    Returns:
        The data with the new columns, in the kind of the data.

    Raises:
        ArgumentError: If the program cannot be used, for example if it calls ``tf.py_func``.
        ColumnError: If there is no column for an input.
        DataError: If a column's type or shape does not fit; at run time, if a cell is null or a value does not fit.

    >>> import pyarrow as pa
    >>> table = pa.table({"v": [[1.0, 2.0], [3.0]]})
    >>> map_rows(lambda v: {"total": v.sum()}, table)["total"].to_pylist()
    [3.0, 3.0]
    """
    frame = adapt(data)
    program, feed = capture(fetches, graph, feed_dict, initial_variables if sess is None else False, sess)
    columns = frame.columns()
    if frame.rows_as_block and _takes_blocks(program, columns, feed):
        return _map_blocks(frame, columns, program, feed, False, None)
    check_new(program.names or (), columns)
    feeds = feeds_by_name(program, columns, feed, rows=True)
    bound = bind(program, feeds, rows=True)
    check_new(tuple(one.name for one in bound.outputs), columns)
    return frame.map(RowStep(bound, tuple(feeds)))


def map_blocks(
    fetches: Any,
    data: Any,
    feed_dict: Mapping[Any, Any] | None = None,
    trim: bool = False,
    initial_variables: bool = True,
    *,
    block_rows: int | str | None = None,
    graph: Any = None,
    sess: Any = None,
) -> Any:
    """Run a program on blocks of rows, and add a column for each of its results.

    Its inputs have one axis more than the cells of their columns: the rows of the block. All cells of a column must
    have one shape within a block.

    Args:
        fetches: The program, as for `map_rows`.
        data: The data, as for `map_rows`.
        feed_dict: Columns for other names, as for `map_rows`.
        trim: Keep only the results, which may have any number of rows; a scalar is one row.
        initial_variables: Initialize the variables, as for `map_rows`.
        block_rows: The rows of a block: a number, or "partition" for a partition of Spark, a shard or a whole table.
            Default: the batches in which the rows arrive: Arrow batches on Spark, otherwise shards and tables.
        graph: Where names are looked up, as for `map_rows`.
        sess: A session that has the values of the variables.

    Returns:
        The data with the new columns, or with `trim` only these, in the kind of the data.

    Raises:
        ArgumentError: If the program cannot be used, or a result is a scalar without `trim`.
        ColumnError: If there is no column for an input.
        DataError: If a column's type or shape does not fit; at run time, if cells differ in shape or are null, or if
            the number of rows changes without `trim`.

    >>> import pyarrow as pa
    >>> table = pa.table({"x": [1.0, 2.0, 3.0]})
    >>> map_blocks(lambda x: {"share": x / x.sum()}, table, block_rows="partition")["share"].to_pylist()[0]
    0.16666666666666666
    >>> map_blocks(lambda x: {"total": x.sum()}, table, trim=True).to_pydict()
    {'total': [6.0]}
    """
    frame = adapt(data)
    trimmed, rows = check_flag("trim", trim), _check_block_rows(block_rows)
    program, feed = capture(fetches, graph, feed_dict, initial_variables if sess is None else False, sess)
    return _map_blocks(frame, frame.columns(), program, feed, trimmed, rows)


def _map_blocks(
    frame: Frame, columns: Columns, program: Program, feed: Mapping[str, str], trim: bool, block_rows: BlockRows
) -> Any:
    if not trim:
        check_new(program.names or (), columns)
    feeds = feeds_by_name(program, columns, feed, rows=False)
    bound = bind(program, feeds, rows=False)
    if not trim:
        check_new(tuple(one.name for one in bound.outputs), columns)
        for output in bound.outputs:
            if not output.cell.shape:
                raise ArgumentError(
                    f"The result {output.name!r} is a scalar, but a column needs one value per row of a block. Use "
                    "trim=True to keep one row per block, reduce_blocks for one result, or map_rows."
                )
    return frame.map(BlockStep(bound, tuple(feeds), trim=trim, block_rows=block_rows))


def _check_block_rows(value: Any) -> BlockRows:
    if value is None or (isinstance(value, str) and value == "partition"):
        return value
    if isinstance(value, str):
        raise wrong("block_rows", value, 'an integer of at least 1, "partition" or None')
    return check_count("block_rows", value)


def _takes_blocks(program: Program, columns: Columns, feed: Mapping[str, str]) -> bool:
    """Whether all inputs of a program have one axis more than the cells of their columns."""
    known = []
    for one in program.inputs:
        column = columns.get(feed.get(one.name, one.name))
        if column is not None and column.cell is not None and one.name not in program.constants:
            known.append(one.shape is not None and len(one.shape) == len(column.cell.shape) + 1)
    return bool(known) and all(known)
