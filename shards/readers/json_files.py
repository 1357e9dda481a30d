"""read_json: files with one object per line, or with an array of objects, as shards of DataFrames."""

from __future__ import annotations

import json
import re
from typing import Any

from orca.core.arguments import check_flag, optional
from orca.core.session import active
from orca.errors import DataError, OrcaError
from orca.shards.frames import pandas
from orca.shards.readers import schemas
from orca.shards.readers.paths import File, Paths, checked_count, contents, grouped, listing
from orca.shards.readers.reading import check_options, join_frames, own_errors, read, unify_dtypes, with_shard_count
from orca.shards.xshards import XShards

WORDS = {"picking": "dtype", "advice": "Give dtype={{{name!r}: ...}}."}
_ROW = re.compile(r"(.*?)\.? in row (\d+)", re.DOTALL)


def read_json(paths: Paths, *, lines: bool | None = None, num_shards: int | None = None, **options: Any) -> XShards:
    """Read json files as shards of pandas DataFrames. Text that looks like a date stays text.

    Args:
        paths: A path, a folder, a glob, an fsspec URL, or a list of them.
        lines: Whether a file holds one object per line, or an array of objects. Default: detected for each file.
        num_shards: Number of shards. Default: one per file.
        options: Further options of ``pandas.read_json``.

    Returns:
        XShards of pandas DataFrames, read eagerly.

    Raises:
        ArgumentError: If an option is unknown or not supported.
        DataError: If a file is missing or malformed, or files differ in columns or types. Names file and line.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = pathlib.Path(folder.name, "a.json").write_text('{"x": 1, "y": "one"}\\n{"x": 2, "y": "two"}\\n')
    >>> read_json(folder.name).to_pandas()
       x    y
    0  1  one
    1  2  two
    >>> folder.cleanup()
    """
    storage = options.pop("storage_options", None)
    check_options(options, pandas().read_json, ("path_or_buf", "chunksize", "nrows", "dtype_backend"))
    count = checked_count(num_shards)
    lines = optional(check_flag)("lines", lines)
    files = listing(paths, storage)
    groups = grouped(files, min(count or len(files), len(files)))
    with own_errors():
        shards = read(groups, _read_group, lines, options, len(groups) < active().cores)
        shard_schemas = shards.transform_shard(schemas.kinds).collect()
        labels = [group[0].label for group in groups]
        return with_shard_count(unify_dtypes(shards, shard_schemas, labels, **WORDS), count)


def _read_group(files: list[File], lines: bool | None, options: dict[str, Any], threads: bool) -> Any:
    frames = [_read_file(file, lines, options, threads) for file in files]
    return join_frames(frames, [file.label for file in files], **WORDS)


def _read_file(file: File, lines: bool | None, options: dict[str, Any], threads: bool) -> Any:
    data = contents(file)
    first = bytes(data[: 1 << 12]).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not first:
        raise DataError(f"{file.label} has no line with data.")
    if lines is None:
        lines = first[:1] != b"["
    try:
        if options:
            return _by_pandas(file, lines, options)
        return _by_lines(data, file.label, threads) if lines else _whole(data, file.label)
    except OrcaError:
        raise
    except Exception as error:
        raise _explained(error, data, file.label, lines) from error


def _by_pandas(file: File, lines: bool, options: dict[str, Any]) -> Any:
    storage = {"storage_options": file.storage} if file.storage and not file.local else {}
    return pandas().read_json(file.url, lines=lines, **{"convert_dates": False, **options}, **storage)


def _by_lines(data: Any, label: str, threads: bool) -> Any:
    import pyarrow as pa
    import pyarrow.json as pj

    # With one block, pyarrow's messages count rows from the start of the file; only very large files are split.
    whole = len(data) + 1 < 1 << 28
    options = pj.ReadOptions(use_threads=threads, block_size=len(data) + 1 if whole else 1 << 24)
    table = pj.read_json(pa.BufferReader(pa.py_buffer(data)), options)
    dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if dates:
        schema = pa.schema([(name, pa.string()) for name in dates])
        as_text = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        text = pj.read_json(pa.BufferReader(pa.py_buffer(data)), options, as_text)
        for name in dates:
            table = table.set_column(table.schema.get_field_index(name), name, text.column(name))
    for position, field in enumerate(table.schema):
        if pa.types.is_null(field.type):
            table = table.set_column(position, field.name, table.column(position).cast(pa.float64()))
    # Neither reading nor the conversion to pandas checks that text is utf-8.
    table.validate(full=True)
    return table.to_pandas(split_blocks=True, self_destruct=True)


def _whole(data: Any, label: str) -> Any:
    import pyarrow as pa

    rows = json.loads(bytes(data).decode("utf-8-sig"))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{label} is not an array of objects. Give lines= or orient= as for pandas.read_json.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        try:
            pa.array([row.get(name) for row in rows])
        except pa.ArrowException as error:
            raise DataError(f"{label}: column {name!r} mixes types: {error}") from error
    return pandas().DataFrame({name: pa.array([row.get(name) for row in rows]).to_pandas() for name in names})


def _explained(error: Exception, data: Any, label: str, lines: bool) -> DataError:
    """Return the error with its line: the first that is not json, else that of the row which pyarrow names."""
    text = " ".join(str(error).split())
    row = _ROW.search(text)
    number = -1
    for line, raw in enumerate(bytes(data).split(b"\n") if lines else [bytes(data)], start=1):
        if not raw.strip():
            continue
        number += 1
        try:
            json.loads(raw)
        except UnicodeDecodeError as wrong:
            line += raw[: wrong.start].count(b"\n")
            return DataError(f"{label}, line {line}: byte 0x{raw[wrong.start]:02x} cannot be read as utf-8.")
        except json.JSONDecodeError as wrong:
            return DataError(f"{label}, line {line + wrong.lineno - 1}: not valid json: {wrong.msg}.")
        if row and number == int(row.group(2)) and len(data) < 1 << 28:
            return DataError(f"{label}, line {line}: {row.group(1)}.")
    return DataError(f"{label} cannot be read: {type(error).__name__}: {text}")
