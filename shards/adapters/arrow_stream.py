"""Anything that exports the Arrow PyCapsule stream: polars, DuckDB relations, RecordBatchReaders, and others.

The rows are read batch by batch. Nothing but pyarrow is imported: the data's own class turns predictions back into
its kind, where it can.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from orca.errors import DataError
from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.batches import store_stream
from orca.shards.adapters.checking import RowChecker, refuse
from orca.shards.adapters.frames import TableAdapter
from orca.shards.adapters.selection import FirstRows, choose, needed, to_arrays
from orca.shards.column_types import Problems, schema_problems
from orca.shards.tree import Tree

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine

_SHARD_BYTES = 32 << 20
"""Rows are stored in shards of about this size, so that little more than the data itself is ever in memory."""
_PIECE_BYTES = 8 << 20
"""A producer may hand over all rows as one batch; its columns become arrays in pieces of about this size."""


class ArrowStreamAdapter(Adapter):
    """A table of another library. A stream that can be read only once is read once."""

    takes_weights = True

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self._reader: Any = None
        self._first: list[Any] = []

    @staticmethod
    def accepts(data: object) -> bool:
        return hasattr(data, "__arrow_c_stream__") or _is_dataset(data)

    def columns(self) -> list[str]:
        # Where the data lists its columns, no stream is opened that an error would leave open.
        names = getattr(self.data, "columns", None)
        return [str(name) for name in (names if isinstance(names, list) else self._open().schema.names)]

    def problems(self, names: Iterable[str]) -> Problems:
        schema, wanted = self._open().schema, set(names)
        return schema_problems({field.name: field.type for field in schema if field.name in wanted})

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        chosen = choose(self.columns(), form)
        refuse(self.problems(needed(chosen)), chosen)
        if form.weights is not None and form.weight_col is None:
            # Weights beside the rows have to be cut like them: let one table do both.
            return TableAdapter(self._table()).shards(form, engine, parts)
        names = needed(chosen)
        check = RowChecker(chosen)
        trees = (check(to_arrays(piece.select(names), chosen)) for piece in self._pieces())
        shards = store_stream(trees, engine, min(_SHARD_BYTES, engine.shard_bytes))
        check.finish()
        if shards is None:
            if form.need_labels:
                raise DataError(f"{form.argument}= has no rows.")
            return TableAdapter(self._open().schema.empty_table()).shards(form, engine, parts)
        return shards

    def head(self, count: int, form: Form, place: Place) -> Tree:
        import pyarrow as pa

        rows = sum(batch.num_rows for batch in self._first)
        for batch in self._open():
            if rows >= count:
                self._first.append(batch)
                break
            self._first.append(batch)
            rows += batch.num_rows
        table = pa.Table.from_batches(self._first, self._open().schema)
        return FirstRows(count, form.feature_cols, form.together)(table)

    def predict(self, call: Prediction) -> Any:
        return _back(self.data, TableAdapter(self._table()).predict(call))

    def threads(self, place: Place) -> int | None:
        return place.cores if place.in_process else super().threads(place)

    def _open(self) -> Any:
        import pyarrow as pa

        if self._reader is None:
            data = self.data.scanner() if _is_dataset(self.data) else self.data
            self._reader = data.to_reader() if hasattr(data, "to_reader") else pa.RecordBatchReader.from_stream(data)
        return self._reader

    def _batches(self) -> Iterator[Any]:
        first, self._first = self._first, []
        return itertools.chain(first, self._open())

    def _pieces(self) -> Iterator[Any]:
        """The rows as Arrow tables of a limited size."""
        import pyarrow as pa

        for batch in self._batches():
            rows = max(1, _PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
            for low in range(0, batch.num_rows, rows):
                yield pa.Table.from_batches([batch.slice(low, rows)])

    def _table(self) -> Any:
        import pyarrow as pa

        return without_views(pa.Table.from_batches(self._batches(), self._open().schema))


def without_views(table: Any) -> Any:
    """Return a table whose text and binary columns have the layouts that every engine can move."""
    import pyarrow as pa

    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [field.with_type(plain.get(field.type, field.type)) for field in table.schema]
    schema = pa.schema(fields, table.schema.metadata)
    return table if schema == table.schema else table.cast(schema)


def _is_dataset(data: object) -> bool:
    """Whether this is a pyarrow Dataset, which scans files and exports no stream by itself."""
    return any(
        base.__module__ in ("pyarrow._dataset", "pyarrow.dataset") and base.__name__ == "Dataset"
        for base in type(data).__mro__
    )


def _back(data: Any, table: Any) -> Any:
    """Return an Arrow table in the kind of the data, as far as its library can build one; else as it is."""
    module, name = type(data).__module__.partition(".")[0], type(data).__name__
    if module == "polars" and name == "DataFrame":
        return type(data)(table)
    if module in ("duckdb", "_duckdb"):
        return sys.modules["duckdb"].from_arrow(table)
    if module == "pyarrow" and name == "RecordBatchReader":
        return table.to_reader()
    return table
