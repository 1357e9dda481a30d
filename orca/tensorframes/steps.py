"""Steps on Arrow tables: a bound program with the columns that feed it. They are pickled to wherever the rows are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.tensorframes.arrow_cells import block_of, column_of, groups_of
from orca.tensorframes.cells import Array, Cell, arrow_type, cast
from orca.tensorframes.matching import Feed
from orca.tensorframes.programs.base import Bound, Output, Run

BlockRows = int | str | None
"""Rows of a block: a number, "partition", or None for the batches in which the rows arrive."""


@dataclass(frozen=True)
class Step:
    """A bound program and its columns."""

    bound: Bound
    feeds: tuple[Feed, ...]
    threads: int = 0

    @property
    def columns(self) -> list[str]:
        """The columns that the program reads."""
        return list(dict.fromkeys(feed.column for feed in self.feeds))

    def on_threads(self, threads: int | None) -> Any:
        """Return the step for processes that may use this number of threads."""
        return replace(self, threads=threads or 0)

    def _arrays(self, table: Any, first_row: int) -> list[Array]:
        """Return the columns as blocks, in the order of the feeds."""
        read: dict[str, Array] = {}
        arrays = []
        for feed in self.feeds:
            if feed.column not in read:
                read[feed.column] = block_of(table.column(feed.column), feed.column, feed.cell, first_row)
            arrays.append(cast(read[feed.column], feed.dtype, feed.column, first_row))
        return arrays


@dataclass(frozen=True)
class MapStep(Step):
    """Computes new columns."""

    trim: bool = False
    block_rows: BlockRows = None

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The new columns, sorted by name, with the type of their cells."""
        raise NotImplementedError

    def compute(self, run: Run, table: Any, first_row: int) -> list[Any]:
        """Return the new columns of a block that has rows."""
        raise NotImplementedError

    def schema(self) -> Any:
        """Return the Arrow schema of the new columns."""
        import pyarrow as pa

        return pa.schema([(one.name, arrow_type(one.cell)) for one in self.outputs])

    def tables(self, tables: Iterable[Any]) -> Iterator[Any]:
        """Yield the new columns of one table after another; without `trim` each has the rows of its table."""
        if self.block_rows is None or self.trim:
            blocks = tables if self.block_rows is None else _rebatched(tables, self.block_rows)
            yield from self._computed(blocks)
            return
        lengths: deque[int] = deque()

        def noted() -> Iterator[Any]:
            for table in tables:
                lengths.append(table.num_rows)
                yield table

        yield from _split(self._computed(_rebatched(noted(), self.block_rows)), lengths)

    def _computed(self, tables: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        run, first_row, schema = None, 0, self.schema()
        for table in tables:
            if table.num_rows:
                run = run or self.bound.open(self.threads)
                yield pa.Table.from_arrays(self.compute(run, table, first_row), schema=schema)
            elif not self.trim:
                yield schema.empty_table()
            first_row += table.num_rows

    def whole(self, table: Any) -> Any:
        """Return the new columns of one table."""
        import pyarrow as pa

        parts = list(self.tables(iter([table])))
        return pa.concat_tables(parts) if parts else self.schema().empty_table()


class BlockStep(MapStep):
    """Runs a program once per block."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        # A scalar in `trim` is a block of one row.
        cells = [Output(one.name, Cell(one.cell.dtype, one.cell.shape[1:])) for one in self.bound.outputs]
        return tuple(sorted(cells, key=lambda one: one.name))

    def compute(self, run: Run, table: Any, first_row: int) -> list[Any]:
        results = dict(zip((one.name for one in self.bound.outputs), run(self._arrays(table, first_row)), strict=True))
        arrays = {name: _as_block(value) for name, value in results.items()}
        expected = len(next(iter(arrays.values()))) if self.trim else table.num_rows
        for name, array in arrays.items():
            if len(array) != expected:
                other = (
                    f"the result {next(iter(arrays))!r} has {expected}" if self.trim else f"the block has {expected}"
                )
                advice = "" if self.trim else " Use trim=True to keep only the results, with any number of rows."
                raise DataError(
                    f"The result {name!r} has {len(array)} rows, but {other}; the block begins with row {first_row}."
                    + advice
                )
        return [column_of(arrays[one.name], one.cell, one.name, first_row) for one in self.outputs]


def _as_block(value: Any) -> Array:
    array = np.array(value, dtype=object) if isinstance(value, bytes | str) else np.asarray(value)
    return array.reshape(1) if array.ndim == 0 else array


class RowStep(MapStep):
    """Runs a program on each row; rows with cells of one shape are computed together."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(sorted(self.bound.outputs, key=lambda one: one.name))

    def compute(self, run: Run, table: Any, first_row: int) -> list[Any]:
        import pyarrow as pa

        names = self.columns
        if not names:
            constant = dict(zip((one.name for one in self.bound.outputs), run([]), strict=True))
            return [column_of(list(constant[one.name]) * table.num_rows, one.cell, one.name) for one in self.outputs]
        cells = {feed.column: feed.cell for feed in self.feeds}
        groups = groups_of([table.column(name) for name in names], names, [cells[name] for name in names], first_row)
        indices: list[Array] = []
        parts: list[list[Any]] = []
        for index, arrays in groups:
            read = dict(zip(names, arrays, strict=True))
            start = first_row if index is None else first_row + int(index[0])
            values = run([self._cast(feed, read[feed.column], index, first_row) for feed in self.feeds])
            results = dict(zip((one.name for one in self.bound.outputs), values, strict=True))
            columns = [column_of(results[one.name], one.cell, one.name, start) for one in self.outputs]
            if index is None:
                return columns
            indices.append(index)
            parts.append(columns)
        back = pa.array(np.argsort(np.concatenate(indices), kind="stable"))
        return [pa.concat_arrays(list(column)).take(back) for column in zip(*parts, strict=True)]

    def _cast(self, feed: Feed, array: Array, index: Array | None, first_row: int) -> Array:
        """Cast the cells of a group; an error names the row in the table."""
        if index is None:
            return cast(array, feed.dtype, feed.column, first_row)
        try:
            return cast(array, feed.dtype, feed.column)
        except DataError:
            for row, cell in zip(index.tolist(), array, strict=True):
                cast(cell[None], feed.dtype, feed.column, first_row + row)
            raise


def _rebatched(tables: Iterable[Any], rows: int | str) -> Iterator[Any]:
    """Yield the rows in tables of this number of rows, or in one table; the last may have fewer."""
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        while isinstance(rows, int) and count >= rows:
            whole = pa.concat_tables(held)
            yield whole.slice(0, rows).combine_chunks()
            held, count = [whole.slice(rows)], count - rows
    if count:
        yield pa.concat_tables(held).combine_chunks()


def _split(results: Iterable[Any], lengths: deque[int]) -> Iterator[Any]:
    """Yield the rows of results in tables of these lengths, as soon as there are enough."""
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for result in results:
        held.append(result)
        count += result.num_rows
        while lengths and count >= lengths[0]:
            length = lengths.popleft()
            whole = pa.concat_tables(held)
            yield whole.slice(0, length)
            held, count = [whole.slice(length)], count - length


# Reductions

_HELD = 64
"""Partial results that are held before they are reduced to one."""


@dataclass(frozen=True)
class ReduceStep(Step):
    """Reduces rows to one. The result x has the dtype and the shape of a cell of column x."""

    pairs: bool = False
    """Whether the program takes two rows, or a block."""
    keys: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The results, with the type of their columns."""
        dtypes = {feed.column: feed for feed in self.feeds}
        return tuple(Output(one.name, Cell(one.cell.dtype, dtypes[one.name].cell.shape)) for one in self.bound.outputs)

    def again(self) -> ReduceStep:
        """Return the step for partial results, whose columns have the dtypes of the program."""
        return replace(self, feeds=tuple(replace(one, cell=Cell(one.dtype, one.cell.shape)) for one in self.feeds))

    def schema(self) -> Any:
        """Return the Arrow schema of the results."""
        import pyarrow as pa

        return pa.schema([(one.name, arrow_type(one.cell)) for one in self.outputs])

    def reduced(self, run: Run, arrays: Sequence[Array]) -> list[Array]:
        """Reduce blocks, one per feed, to one row."""
        if not self.pairs:
            return [_whole_cell(value) for value in run(arrays)]
        # In the order of the outputs: the cells of x, which are fed as x_1 and x_2.
        places = {feed.column: number for number, feed in enumerate(self.feeds)}
        cells = [arrays[places[one.name]] for one in self.bound.outputs]
        while len(cells[0]) > 1:
            cells = self._paired(run, cells)
        return [value[0] if value.dtype != object or value.ndim > 1 else np.array(value[0], object) for value in cells]

    def _paired(self, run: Run, cells: list[Array]) -> list[Array]:
        """Reduce neighbors to one row, all pairs at once, so that the order of rows is kept."""
        rows = len(cells[0])
        by_name = {one.name: cell for one, cell in zip(self.bound.outputs, cells, strict=True)}
        even = rows - rows % 2
        arrays = [by_name[feed.column][int(feed.input.endswith("_2")) : even : 2] for feed in self.feeds]
        results = [value if isinstance(value, np.ndarray) else np.stack(value) for value in run(arrays)]
        return [np.concatenate([one, cell[even:]]) if even < rows else one for one, cell in
                zip(results, cells, strict=True)]  # fmt: skip

    def row_of(self, tables: Iterable[Any]) -> list[Array] | None:
        """Return the reduced rows of some tables; None if they have none."""
        first_row = 0
        run = None
        rows: list[list[Array]] = []
        for table in tables:
            if table.num_rows:
                run = run or self.bound.open(self.threads)
                rows.append(self.reduced(run, self._arrays(table, first_row)))
                first_row += table.num_rows
            if len(rows) >= _HELD:
                rows = [self.join(rows)]
        return None if not rows else self.join(rows)

    def join(self, rows: Sequence[list[Array]]) -> list[Array]:
        """Reduce rows that are reduced already."""
        if len(rows) == 1:
            return rows[0]
        stacked = {one.name: _stacked(column, one.name) for one, column in
                   zip(self.bound.outputs, zip(*rows, strict=True), strict=True)}  # fmt: skip
        return self.reduced(self.bound.open(self.threads), [stacked[feed.column] for feed in self.feeds])

    def table_of(self, rows: Sequence[list[Array]]) -> Any:
        """Return reduced rows as an Arrow table."""
        import pyarrow as pa

        columns = [
            column_of([row[place] for row in rows], one.cell, one.name) for place, one in enumerate(self.outputs)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema())

    def rows_in(self, table: Any) -> list[list[Array]]:
        """Return the rows of such a table."""
        blocks = [block_of(table.column(one.name), one.name, one.cell) for one in self.outputs]
        return [[_whole_cell(block[row]) for block in blocks] for row in range(table.num_rows)]

    def tables(self, tables: Iterable[Any]) -> Iterator[Any]:
        """Yield a table of one row, if there are rows."""
        row = self.row_of(tables)
        if row is not None:
            yield self.table_of([row])

    def by_key(self, table: Any) -> Any:
        """Reduce the rows of each key; return a table of the keys and the results, sorted by the keys."""
        import pyarrow as pa

        keys = list(self.keys)
        place = "orca rows"
        numbered = table.select(keys).append_column(place, pa.array(np.arange(table.num_rows)))
        grouped = numbered.group_by(keys, use_threads=False).aggregate([(place, "list")])
        grouped = grouped.sort_by([(name, "ascending") for name in keys])
        lists = grouped.column(f"{place}_list").combine_chunks()
        lists = lists if isinstance(lists, pa.Array) else pa.concat_arrays(lists.chunks)
        ordered = table.select(self.columns).take(lists.flatten()).combine_chunks()
        offsets = np.asarray(lists.offsets)
        rows = [self.row_of([ordered.slice(low, high - low)]) for low, high in
                zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]  # fmt: skip
        reduced = self.table_of([row for row in rows if row is not None])
        for name in reversed(keys):
            reduced = reduced.add_column(0, name, grouped.column(name))
        return reduced


def _whole_cell(value: Any) -> Array:
    return np.array(value, dtype=object) if isinstance(value, bytes | str) else np.asarray(value)


def _stacked(values: Sequence[Array], name: str) -> Array:
    try:
        return np.stack(values)
    except ValueError:
        shapes = sorted({value.shape for value in values})
        raise DataError(
            f"Column {name!r} has cells of shapes {shapes[:3]} in different blocks; a reduction needs one shape."
        ) from None
