"""Tables of a dataset: pandas DataFrames and Arrow tables as Parquet parts, read with columns and filters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orca.errors import ArgumentError, ColumnError, DataError, listed, suggest
from orca.shards.tree import kind_of
from orca.store.data.filters import expression
from orca.store.data.parts import PartWriter
from orca.store.files import Files

_GROUP_ROWS = 100_000
"""Rows of a row group, which a filter skips or reads."""


def write_table(writer: PartWriter, label: str, table: Any, is_slice: bool = False) -> dict[str, Any]:
    """Write a DataFrame or an Arrow table, or a slice of one, as one part; return its entry."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_frame = kind_of(table) == "frame"
    try:
        # The index of a plain frame counts its rows; any other is a column, so that filters keep the right entries.
        arrow = pa.Table.from_pandas(table, preserve_index=_index(table, is_slice)) if is_frame else table
        with writer.part(label, "parquet", arrow.num_rows) as part:
            pq.write_table(arrow, part.path, row_group_size=_GROUP_ROWS, write_page_checksum=True)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"data= cannot be stored as Parquet: {error}") from error
    return {**part.entry, "columns": {field.name: str(field.type) for field in arrow.schema}}


def _index(frame: Any, is_slice: bool) -> bool | None:
    index = frame.index
    counts = type(index).__name__ == "RangeIndex" and (index.step, index.name) == (1, None)
    return None if counts and (is_slice or index.start == 0) else True


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> None:
    """Raise if an appended part has other columns or types."""
    if old["columns"] != new["columns"]:
        names = sorted(set(old["columns"]) ^ set(new["columns"]))
        changed = [column for column in old["columns"] if old["columns"][column] != new["columns"].get(column)]
        what = f"the columns {listed(names)} are in one only" if names else f"the types of {listed(changed)} differ"
        raise DataError(f"append=True: the data does not fit the dataset {name!r}: {what}.")


def read_table(
    files: Files, parts: Sequence[Mapping[str, Any]], columns: Sequence[str] | None, filters: Mapping[str, Any]
) -> Any:
    """Return the rows of all parts as one Arrow table; columns and filters decide what is read from the files."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    existing = list(parts[0]["columns"])
    for name in columns or ():
        if name not in existing:
            raise ColumnError(
                f"columns=[{name!r}] is not in the dataset. Columns: {listed(existing)}.{suggest(name, existing)}"
            )
    condition = expression(filters, existing)
    scan = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=scan)
    paths = [files.place(str(part["file"])) for part in parts]
    try:
        dataset = ds.dataset(paths, format=form, filesystem=_filesystem(files))
        chosen = None if columns is None else [*columns, *_index_columns(dataset.schema, columns)]
        return dataset.to_table(columns=chosen, filter=condition)
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ArgumentError(f"The filters {listed(filters)} do not fit the columns: {error}") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"The store is damaged: a part of the dataset cannot be read: {error}") from error


def _filesystem(files: Files) -> Any:
    from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

    return LocalFileSystem() if files.is_local else PyFileSystem(FSSpecHandler(files.folder.files))


def _index_columns(schema: Any, columns: Sequence[str]) -> list[str]:
    """Return the columns that hold the index of a DataFrame, which comes back with it."""
    described = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    names = [name for name in described.get("index_columns", ()) if isinstance(name, str)]
    return [name for name in names if name in schema.names and name not in columns]
