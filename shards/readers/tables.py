"""Streams tables from csv and parquet files, with the same columns and types in all files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from orca.errors import DataError
from orca.shards.readers.paths import File, naming_file_in_errors


def opened(file: File) -> Any:
    """Open the file's bytes, local or remote."""
    import fsspec

    return fsspec.open(file.url, "rb", **file.storage)


def common_schema(files: Sequence[File]) -> tuple[Any, int]:
    """Return a schema that holds the values of all files, and the number of rows."""
    import pyarrow as pa

    schemas = [_schema_and_rows(file) for file in files]
    first = schemas[0][0]
    common = first
    for (schema, _), file in zip(schemas[1:], files[1:], strict=True):
        differing = set(first.names) ^ set(schema.names)
        if differing:
            raise DataError(
                f"{file.label} and {files[0].label} have different columns: {', '.join(sorted(differing))} "
                f"{'is' if len(differing) == 1 else 'are'} in one of them only."
            )
        for name in schema.names:
            one, other = common.field(name), schema.field(name)
            try:
                both = pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive")
            except pa.ArrowException as error:
                raise DataError(
                    f"{file.label}: column {name!r} is {other.type}, in the files before it is {one.type}. "
                    "Make them alike."
                ) from error
            common = common.set(common.get_field_index(name), both.field(0))
    return common.remove_metadata(), sum(rows for _, rows in schemas)


def tables(file: File, schema: Any, size: int) -> Iterator[Any]:
    """Yield the rows of a file as tables of this schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with naming_file_in_errors(file), opened(file) as handle:
        if _is_parquet(file):
            batches: Any = pq.ParquetFile(handle).iter_batches(batch_size=size)
        else:
            batches = _csv(handle, {field.name: field.type for field in schema})
        for batch in batches:
            if batch.num_rows:
                yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


def _is_parquet(file: File) -> bool:
    return file.url.lower().endswith(".parquet")


def _schema_and_rows(file: File) -> tuple[Any, int]:
    """Return the schema of a file and its number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {}
    with naming_file_in_errors(file):
        while True:
            with opened(file) as handle:
                if _is_parquet(file):
                    parquet = pq.ParquetFile(handle)
                    return _readable(parquet.schema_arrow), parquet.metadata.num_rows
                reader = _csv(handle, types)
                schema = _readable(reader.schema)
                try:
                    return schema, sum(batch.num_rows for batch in reader)
                except pa.ArrowInvalid as error:
                    # Types are inferred from the first block; a later value may need a wider one.
                    match = re.search(r"In CSV column #(\d+): .*conversion error", str(error))
                    field = schema.field(int(match.group(1))) if match else None
                    if field is None or types.get(field.name) == pa.string():
                        raise
                    types = {**types, field.name: _wider(field.type)}


def _readable(schema: Any) -> Any:
    """Return the schema after reading the names of its columns, which raises if one of them is not UTF-8."""
    assert len(schema.names) == len(schema)
    return schema


def _wider(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_integer(kind) else pa.string()


def _csv(handle: Any, types: dict[str, Any]) -> Any:
    from pyarrow import csv

    return csv.open_csv(handle, convert_options=csv.ConvertOptions(column_types=types))
