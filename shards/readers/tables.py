"""Tables in csv and parquet files, read piece by piece, with the same columns and types in all files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from orca.errors import DataError
from orca.shards.readers.paths import File, naming_file_in_errors


def opened(file: File) -> Any:
    """The file's bytes, wherever it lies."""
    import fsspec

    return fsspec.open(file.url, "rb", **file.storage)


def common_schema(files: Sequence[File]) -> tuple[Any, int]:
    """The columns with types that hold the values of all files, and how many rows there are."""
    import pyarrow as pa

    found = [_looked(file) for file in files]
    first = found[0][0]
    common = first
    for (schema, _), file in zip(found[1:], files[1:], strict=True):
        apart = set(first.names) ^ set(schema.names)
        if apart:
            raise DataError(
                f"{file.label} and {files[0].label} have different columns: {', '.join(sorted(apart))} "
                f"{'is' if len(apart) == 1 else 'are'} in one of them only."
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
    return common.remove_metadata(), sum(rows for _, rows in found)


def tables(file: File, schema: Any, size: int) -> Iterator[Any]:
    """The rows of a file as tables of this schema."""
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


def _looked(file: File) -> tuple[Any, int]:
    """The schema of a file and its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {}
    with naming_file_in_errors(file):
        while True:
            with opened(file) as handle:
                if _is_parquet(file):
                    known = pq.ParquetFile(handle)
                    return known.schema_arrow, known.metadata.num_rows
                reader = _csv(handle, types)
                schema = reader.schema
                try:
                    return schema, sum(batch.num_rows for batch in reader)
                except pa.ArrowInvalid as error:
                    # Types are guessed from the beginning; a later value may need a wider one.
                    place = re.search(r"In CSV column #(\d+): .*conversion error", str(error))
                    field = schema.field(int(place.group(1))) if place else None
                    if field is None or types.get(field.name) == pa.string():
                        raise
                    types = {**types, field.name: _wider(field.type)}


def _wider(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_integer(kind) else pa.string()


def _csv(handle: Any, types: dict[str, Any]) -> Any:
    from pyarrow import csv

    return csv.open_csv(handle, convert_options=csv.ConvertOptions(column_types=types))
