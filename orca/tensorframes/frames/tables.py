"""Frames of this process: Arrow tables, pandas and polars DataFrames. Results are copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.columns import mixed_values
from orca.shards.tree import kind_of
from orca.tensorframes.arrow_cells import block_of, refuse_nulls, shape_of
from orca.tensorframes.cells import Cell, Column, Shape, cell_of_arrow, shape_text
from orca.tensorframes.frames.base import Frame
from orca.tensorframes.steps import MapStep, ReduceStep


def columns_of(schema: Any) -> dict[str, Column]:
    """Return the columns of an Arrow schema."""
    return {
        field.name: Column(field.name, cell_of_arrow(field.type), str(field.type), field.nullable) for field in schema
    }


class TableFrame(Frame):
    """An Arrow table."""

    @staticmethod
    def accepts(data: object) -> bool:
        return kind_of(data) == "table"

    def table(self, names: list[str] | None = None) -> Any:
        """Return these columns, or all that Arrow can hold, as an Arrow table."""
        return self.data if names is None else self.data.select(names)

    def back(self, table: Any) -> Any:
        """Return an Arrow table in the kind of the data."""
        return table

    def columns(self) -> dict[str, Column]:
        return columns_of(self.table().schema)

    def map(self, step: MapStep) -> Any:
        results = step.whole(self.table(step.columns))
        return self.back(results) if step.trim else self.extended(results)

    def extended(self, results: Any) -> Any:
        """Return the data with further columns before its own."""
        for name in self.data.column_names:
            results = results.append_column(self.data.schema.field(name), self.data.column(name))
        return results

    def reduce(self, step: ReduceStep) -> list[Any]:
        return list(step.tables([self.table(step.columns)]))

    def aggregate(self, step: ReduceStep) -> Any:
        return self.back(step.by_key(self.table([*step.keys, *step.columns])))

    def shapes(self) -> dict[str, Shape]:
        return shapes_in(self.table())

    def with_shapes(self, shapes: Mapping[str, Shape]) -> Any:
        check_shapes(self.table(list(shapes)), shapes)
        return self.data


def shapes_in(table: Any) -> dict[str, Shape]:
    """Return the shape of the cells of each column that can be a tensor."""
    cells = {field.name: cell_of_arrow(field.type) for field in table.schema}
    return {name: shape_of(table.column(name), cell) for name, cell in cells.items() if cell is not None}


def check_shapes(table: Any, shapes: Mapping[str, Shape]) -> Any:
    """Return a table if the cells of some columns have these shapes; else raise."""
    for name, shape in shapes.items():
        cell = cell_of_arrow(table.schema.field(name).type)
        actual = None if cell is None else shape_of(table.column(name), cell)
        fits = actual is not None and len(actual) == len(shape)
        if fits and actual is not None:
            fits = all(size in (None, other) for size, other in zip(shape, actual, strict=True))
        if not fits and table.num_rows:
            raise DataError(f"Column {name!r} has cells of shape {shape_text(actual)}, not {shape_text(shape)}.")
    return table


class PandasFrame(TableFrame):
    """A pandas DataFrame; its index is kept."""

    rows_as_block = True

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self._arrays: dict[str, Any] = {}

    @staticmethod
    def accepts(data: object) -> bool:
        return kind_of(data) == "frame"

    def table(self, names: list[str] | None = None) -> Any:
        import pyarrow as pa

        keys = [str(key) for key in self.data.columns]
        arrays = {}
        for name in keys if names is None else names:
            if keys.count(name) > 1:
                raise DataError(f"{name!r} is the name of {keys.count(name)} columns. Rename or drop all but one.")
            arrays[name] = self._array(name, keys.index(name), names is not None)
        if not arrays:
            return pa.table({"": np.zeros(len(self.data))}).select([])
        return pa.table(arrays)

    def _array(self, name: str, place: int, needed: bool) -> Any:
        """Return a column as an Arrow array, converted once; nulls if it cannot be one and is not needed."""
        import pyarrow as pa

        if name not in self._arrays:
            series = self.data.iloc[:, place]
            try:
                self._arrays[name] = _arrow(series)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                if needed:
                    raise DataError(mixed_values(series, name)) from None
                return pa.nulls(len(series))
        return self._arrays[name]

    def back(self, table: Any) -> Any:
        import pandas

        return pandas.DataFrame({name: _series(table.column(name), name) for name in table.column_names})

    def extended(self, results: Any) -> Any:
        import pandas

        added = self.back(results).set_axis(self.data.index, axis=0)
        return pandas.concat([added, self.data], axis=1)


def _arrow(series: Any) -> Any:
    """Return a column of pandas as an Arrow array; NaN is a number, None is missing."""
    import pyarrow as pa

    first = next((value for value in series if value is not None), None) if series.dtype == object else None
    if isinstance(first, np.ndarray) and first.ndim > 1:
        return pa.array([None if value is None else np.asarray(value).tolist() for value in series],
                        _nested(pa.from_numpy_dtype(first.dtype), first.ndim))  # fmt: skip
    array = pa.array(series, from_pandas=False)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _nested(kind: Any, depth: int) -> Any:
    import pyarrow as pa

    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def _series(column: Any, name: str) -> Any:
    """Return an Arrow column as values for pandas: one array per row where cells are arrays."""
    cell = cell_of_arrow(column.type)
    if cell is None or not cell.shape:
        return column.to_pandas()
    try:
        refuse_nulls(column.combine_chunks(), name)
        block = block_of(column, name, Cell(cell.dtype, cell.shape))
        return list(block)
    except DataError:
        return [None if value is None else np.asarray(value) for value in column.to_pylist()]


class PolarsFrame(TableFrame):
    """A polars DataFrame, through its Arrow stream."""

    @staticmethod
    def accepts(data: object) -> bool:
        kind = type(data)
        return kind.__module__.partition(".")[0] == "polars" and kind.__name__ == "DataFrame"

    def table(self, names: list[str] | None = None) -> Any:
        import pyarrow as pa

        from orca.shards.adapters.arrow_stream import without_views

        table = without_views(pa.RecordBatchReader.from_stream(self.data).read_all())
        return table if names is None else table.select(names)

    def back(self, table: Any) -> Any:
        return type(self.data)(table)

    def extended(self, results: Any) -> Any:
        return self.back(TableFrame(self.table()).extended(results))


def table_frame(data: Any) -> TableFrame | None:
    """Return the frame of data in this process; None for data of other kinds."""
    for kind in (TableFrame, PandasFrame, PolarsFrame):
        if kind.accepts(data):
            return kind(data)
    return None
