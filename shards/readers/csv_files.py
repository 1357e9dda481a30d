"""read_csv: csv files as shards of DataFrames; large ones are cut at line borders, so that all cores read."""

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
from orca.shards.readers.reading import counted, made_alike, own_errors, read
from orca.shards.xshards import XShards

CUT_BYTES = 32 << 20
"""A file larger than this is cut if there are fewer files than cores."""


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
    """Read csv files (a path, a list, a folder, a glob, an fsspec URL) as shards of pandas DataFrames.

    There is one shard per file, or `num_shards`. Columns and dtypes are the same in all shards. Further options
    are those of pandas.read_csv; they hold for each file.

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
    options = checked(usecols, dtype, names, parse_dates, index_col, header, sep, pandas_options)
    files = listing(paths, storage)
    groups = _plan(files, options, checked_count(num_shards), active().cores)
    labels = [group[0].file.label for group in groups]
    with own_errors():
        shards = read(groups, read_group, options)
        found = shards.transform_shard(schemas.kinds).collect()
        disputed = _disputed(groups, found)
        if disputed:
            # Cut apart, some ranges of a column looked like numbers; read whole, it would have been text.
            groups = [[replace(p, text=disputed.get(p.file.url, ())) for p in group] for group in groups]
            shards = read(groups, read_group, options)
            found = shards.transform_shard(schemas.kinds).collect()
        return counted(made_alike(shards, found, labels, **WORDS), num_shards)


def _plan(files: list[File], options: CsvOptions, num_shards: int | None, cores: int) -> list[list[Piece]]:
    """The pieces that each shard is read from."""
    if num_shards is not None and num_shards <= len(files):
        return [[Piece(file, threads=num_shards < cores) for file in group] for group in grouped(files, num_shards)]
    limit = CUT_BYTES if num_shards is None else 0
    counts = _counts(files, options, num_shards or cores, limit)
    pieces = [piece for file, count in zip(files, counts, strict=True) for piece in cut(file, options, count)]
    return [[replace(piece, threads=len(pieces) < cores)] for piece in pieces]


def _counts(files: list[File], options: CsvOptions, goal: int, limit: int) -> list[int]:
    """How many pieces to cut each file into, so that there are `goal` and the largest is as small as can be."""
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
    """A file as at most `count` ranges of whole lines; one with a quote in it stays whole, for its lines may not end
    where they seem to."""
    if count == 1:
        return [Piece(file)]
    data = contents(file)
    _, begin = header(data, options, file.label)
    if data.find(options.quote.encode(), begin) >= 0:
        return [Piece(file)]
    borders = [0]
    for index in range(1, count):
        place = data.find(b"\n", max(begin, begin + (len(data) - begin) * index // count - 1)) + 1
        if 0 < place < len(data) and place > borders[-1]:
            borders.append(place)
    borders.append(len(data))
    return [Piece(file, start, stop) for start, stop in itertools.pairwise(borders)]


def _disputed(groups: list[list[Piece]], found: list[schemas.Schema]) -> dict[str, tuple[Any, ...]]:
    """Columns on whose type the ranges of one file do not agree, by file."""
    seen: dict[str, schemas.Schema] = {}
    apart: dict[str, dict[Any, None]] = {}
    for group, schema in zip(groups, found, strict=True):
        url = group[0].file.url
        if len(group) > 1 or group[0].stop is None:
            continue
        known = seen.setdefault(url, dict(schema))
        for name, kind in schema.items():
            both = schemas.merge(known[name], kind)
            if both is None:
                apart.setdefault(url, {})[name] = None
            else:
                known[name] = both
    return {url: tuple(columns) for url, columns in apart.items()}
