"""Matches the inputs and results of a program with the columns of a frame, before any row is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orca.errors import ArgumentError, ColumnError, DataError, listed, suggest
from orca.tensorframes.cells import Cell, Column, Shape, can_cast, cast_advice, merged, shape_text
from orca.tensorframes.programs.base import Bound, Input, Program

Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Feed:
    """A column for an input: how its cells are read, and the dtype that they are cast to."""

    input: str
    column: str
    cell: Cell
    dtype: str


def feeds_by_name(program: Program, columns: Columns, feed: Mapping[str, str], rows: bool) -> list[Feed]:
    """Return the column of each input: that which `feed_dict` names, or that of the same name."""
    feeds = []
    for one in program.inputs:
        if one.name in program.constants:
            continue
        name = feed.get(one.name, one.name)
        if name in columns:
            feeds.append(feed_of(one, columns[name], rows))
        elif one.name in feed:
            raise ColumnError(
                f"feed_dict[{one.name!r}]={name!r} is not a column. Columns: {listed(columns)}."
                + suggest(name, columns)
            )
        elif not one.optional:
            raise ColumnError(
                f"Nobody feeds the input {one.name!r} of fetches=: there is no such column. Columns: {listed(columns)}."
                f"{suggest(one.name, columns)} Rename the placeholder or parameter, or give "
                f'feed_dict={{"{one.name}": "column"}}, or a value in place of the column.'
            )
    return feeds


def feed_of(one: Input, column: Column, rows: bool) -> Feed:
    """Return a column as the feed of an input; raise if its dtype or shape does not fit."""
    if column.cell is None:
        raise DataError(
            f"Column {column.name!r} has the type {column.described}, which is not a tensor: numbers, booleans, text, "
            "binary, and arrays of these are. Select its fields, or cast it."
        )
    dtype = column.cell.dtype if one.dtype is None else one.dtype
    if not can_cast(column.cell.dtype, dtype):
        raise DataError(
            f"Column {column.name!r} has dtype {column.cell.dtype}, but the input {one.name!r} takes {dtype}, which "
            f"cannot hold all its values. Give the input the dtype {column.cell.dtype}, or write "
            f"{cast_advice(column.name, dtype)}."
        )
    expected = one.shape
    if not rows and expected is not None:
        if not expected:
            raise DataError(
                f"The input {one.name!r} has the shape [], a single value, but it is fed with blocks of column "
                f"{column.name!r}, of shape {shape_text((None, *column.cell.shape))}. Use map_rows, or give the "
                "placeholder one more axis."
            )
        if expected[0] is not None:
            raise DataError(
                f"The input {one.name!r} has the shape {shape_text(expected)}, a fixed number of rows, but blocks "
                f"differ in size. Give it the shape {shape_text((None, *expected[1:]))}."
            )
        expected = expected[1:]
    try:
        shape = merged(column.cell.shape, expected) or ()
    except ValueError:
        actual: Shape = column.cell.shape if rows else (None, *column.cell.shape)
        raise DataError(
            f"Column {column.name!r} has {'cells' if rows else 'blocks'} of shape {shape_text(actual)}, but the input "
            f"{one.name!r} takes {shape_text(one.shape)}."
            + ("" if not rows or one.shape != (None, *column.cell.shape) else " That is a block: use map_blocks.")
        ) from None
    return Feed(one.name, column.name, Cell(column.cell.dtype, shape), dtype)


def bind(program: Program, feeds: list[Feed], rows: bool) -> Bound:
    """Return the program for the types of its columns."""
    cells = {feed.input: Cell(feed.dtype, feed.cell.shape if rows else (None, *feed.cell.shape)) for feed in feeds}
    kinds = {feed.cell.dtype for feed in feeds}
    text = "string" if "string" in kinds and "binary" not in kinds else "binary"
    return program.bind(cells, rows, text)


def check_new(names: tuple[str, ...], columns: Columns) -> None:
    """Raise if a result has the name of a column."""
    for name in names:
        if name in columns:
            raise ArgumentError(
                f"The program has a result called {name!r}, but this column already exists. Columns: "
                f"{listed(columns)}. Give the tensor another name, or drop the column first."
            )


# Reductions


def feeds_of_reduction(
    program: Program, bound_names: tuple[str, ...], columns: Columns, suffixes: tuple[str, ...]
) -> list[Feed]:
    """Return the feeds of a reduction: the result x reads column x through the inputs x + each suffix."""
    inputs = {one.name: one for one in program.inputs if one.name not in program.constants}
    feeds = []
    for name in bound_names:
        for suffix in suffixes:
            if name + suffix not in inputs:
                raise ArgumentError(
                    f"The result {name!r} of a reduction needs the input{'s' if len(suffixes) > 1 else ''} "
                    f"{' and '.join(repr(name + one) for one in suffixes)}; {name + suffix!r} is missing. Inputs: "
                    f"{listed(inputs) or 'none'}.{suggest(name + suffix, inputs)}"
                )
        if name not in columns:
            raise ColumnError(
                f"The reduction has the result {name!r}, but there is no such column. Columns: {listed(columns)}."
                + suggest(name, columns)
            )
        feeds += [feed_of(inputs[name + suffix], columns[name], rows=len(suffixes) == 2) for suffix in suffixes]
    used = {feed.input for feed in feeds}
    extra = [name for name, one in inputs.items() if name not in used and not one.optional]
    if extra:
        expected = " and ".join(f"x{suffix}" for suffix in suffixes)
        raise ArgumentError(
            f"The reduction has the input {extra[0]!r}, which belongs to none of its results "
            f"{', '.join(bound_names)}. A result x takes {expected}."
        )
    return feeds


def check_reduction(bound: Bound, feeds: list[Feed], suffix: str) -> None:
    """Raise unless each result of a reduction has the dtype and shape of its column's cells."""
    by_input = {feed.input: feed for feed in feeds}
    for output in bound.outputs:
        feed = by_input[output.name + suffix]
        text = {feed.dtype, output.cell.dtype} <= {"string", "binary"}
        if feed.dtype != output.cell.dtype and not text:
            raise ArgumentError(
                f"The result {output.name!r} has dtype {output.cell.dtype}, but its input {feed.input!r} has "
                f"{feed.dtype}. A reduction returns what it takes: use one dtype for both."
            )
        try:
            merged(feed.cell.shape, output.cell.shape)
        except ValueError:
            raise ArgumentError(
                f"The result {output.name!r} has the shape {shape_text(output.cell.shape)}, but the cells of its "
                f"column have {shape_text(feed.cell.shape)}. A reduction returns one cell of the shape that it takes."
            ) from None
