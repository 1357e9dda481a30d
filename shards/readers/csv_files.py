"""read_csv: csv files as shards of DataFrames; large files are split at line ends, so that all cores read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orca.core.session import active
from orca.shards.readers import schemas
from orca.shards.readers.csv_options import CsvOptions, checked
from orca.shards.readers.csv_parse import WORDS, Piece, header, read_group
from orca.shards.readers.paths import PACKED, File, Paths, checked_count, contents, grouped, listing
from orca.shards.readers.reading import own_errors, read, unify_dtypes, with_shard_count
from orca.shards.xshards import XShards

CUT_BYTES = 32 << 20
"""A larger file is split if there are fewer files than cores."""


def read_csv(
    paths: Paths,
    *,
    usecols: Any = None,
    dtype: Any = None,
    names: Sequence[Any] | None = None,
    parse_dates: Any = None,
    index_col: Any = None,
    header: Any = "infer",
    sep: str = ",",
    num_shards: int | None = None,
    **pandas_options: Any,
) -> XShards:
    """Read csv files as shards of pandas DataFrames, with the same columns and dtypes in all shards.

    Args:
        paths: A path, a folder, a glob, an fsspec URL, or a list of them.
        usecols: Columns to read, as in pandas: names, positions or a function of the name.
        dtype: One dtype, or a dict of dtypes by column. Default: inferred.
        names: Names of the columns, for files without a header or to replace it.
        parse_dates: Columns to read as dates, or True for the index.
        index_col: Columns to use as the index.
        header: Line of the header, or None.
        sep: Separator of the fields.
        num_shards: Number of shards. Default: one per file; large files are split if there are fewer than cores.
        pandas_options: Further options of ``pandas.read_csv``, applied to each file.

    Returns:
        XShards of pandas DataFrames, read eagerly.

    Raises:
        ArgumentError: If an option is unknown or not supported.
        ColumnError: If a named column is missing.
        DataError: If a file is missing or malformed, or files differ in columns or types. Names file and line.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for year in 2024, 2025:
    ...     _ = pathlib.Path(folder.name, f"{year}.csv").write_text(f"year,sold\\n{year},7\\n")
    >>> read_csv(folder.name, dtype={"sold": "float32"}).to_pandas()
       year  sold
    0  2024   7.0
    1  2025   7.0
    >>> folder.cleanup()
    """
    storage = pandas_options.pop("storage_options", None)
    count = checked_count(num_shards)
    options = checked(usecols, dtype, names, parse_dates, index_col, header, sep, pandas_options)
    files = listing(paths, storage)
    groups = _plan(files, options, count, active().cores)
    labels = [group[0].file.label for group in groups]
    with own_errors():
        shards, shard_schemas = _read_with_schemas(groups, options)
        disputed = _disputed(groups, shard_schemas)
        if disputed:
            # Some ranges of a column looked like numbers; read as a whole, the column would have been text.
            groups = [[replace(p, text=disputed.get(p.file.url, ())) for p in group] for group in groups]
            shards, shard_schemas = _read_with_schemas(groups, options)
        return with_shard_count(unify_dtypes(shards, shard_schemas, labels, **WORDS), count)


def _read_with_schemas(groups: list[list[Piece]], options: CsvOptions) -> tuple[XShards, list[schemas.Schema]]:
    shards = read(groups, read_group, options)
    return shards, shards.transform_shard(schemas.kinds).collect()


def _plan(files: list[File], options: CsvOptions, num_shards: int | None, cores: int) -> list[list[Piece]]:
    """Choose the pieces that each shard is read from."""
    if num_shards is not None and num_shards <= len(files):
        return [[Piece(file, threads=num_shards < cores) for file in group] for group in grouped(files, num_shards)]
    limit = CUT_BYTES if num_shards is None else 0
    counts = _counts(files, options, num_shards or cores, limit)
    pieces = [piece for file, count in zip(files, counts, strict=True) for piece in cut(file, options, count)]
    return [[replace(piece, threads=len(pieces) < cores)] for piece in pieces]


def _counts(files: list[File], options: CsvOptions, goal: int, limit: int) -> list[int]:
    """Choose how many pieces to split each file into: `goal` in all, with the largest as small as possible."""
    counts = [1] * len(files)
    large = [
        index
        for index, file in enumerate(files)
        if options.fast and file.local and file.size > limit and not file.url.lower().endswith(PACKED)
    ]
    while large and sum(counts) < goal:
        counts[max(large, key=lambda index: files[index].size / counts[index])] += 1
    return counts


def cut(file: File, options: CsvOptions, count: int) -> list[Piece]:
    """Split a file into at most `count` ranges of whole lines.

    A file with quotes is not split: a quoted field may contain line ends.
    """
    if count == 1:
        return [Piece(file)]
    data = contents(file)
    _, begin = header(data, options, file.label)
    if data.find(options.quote.encode(), begin) >= 0:
        return [Piece(file)]
    borders = [0]
    for index in range(1, count):
        position = data.find(b"\n", max(begin, begin + (len(data) - begin) * index // count - 1)) + 1
        if 0 < position < len(data) and position > borders[-1]:
            borders.append(position)
    borders.append(len(data))
    return [Piece(file, start, stop) for start, stop in itertools.pairwise(borders)]


def _disputed(groups: list[list[Piece]], shard_schemas: list[schemas.Schema]) -> dict[str, tuple[Any, ...]]:
    """Return, by file, the columns on whose type the ranges of the file do not agree."""
    merged: dict[str, schemas.Schema] = {}
    disputed: dict[str, dict[Any, None]] = {}
    for group, schema in zip(groups, shard_schemas, strict=True):
        url = group[0].file.url
        if len(group) > 1 or group[0].stop is None:
            continue
        common = merged.setdefault(url, dict(schema))
        for name, kind in schema.items():
            both = schemas.merge(common[name], kind)
            if both is None:
                disputed.setdefault(url, {})[name] = None
            else:
                common[name] = both
    return {url: tuple(columns) for url, columns in disputed.items()}
