"""read_parquet and write_parquet: parquet files as shards of DataFrames, and shards as parquet files."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from orca.core.arguments import shown, wrong
from orca.core.session import active
from orca.errors import ArgumentError, ColumnError, suggest
from orca.shards.readers import schemas
from orca.shards.readers.paths import File, Paths, checked_count, grouped, listing, naming_file_in_errors
from orca.shards.readers.reading import join_frames, own_errors, read, unify_dtypes, with_shard_count
from orca.shards.readers.writing import write_parts
from orca.shards.shard_formats import to_arrow
from orca.shards.tree import kind_of
from orca.shards.xshards import XShards

WORDS = {
    "picking": "columns",
    "advice": "Leave column {name!r} out with columns=, or write the files with the same type.",
}


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    num_shards: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> XShards:
    """Read parquet files as shards of pandas DataFrames. Folders named ``year=2025`` become a column ``year``.

    Args:
        paths: A path, a folder, a glob, an fsspec URL, or a list of them.
        columns: Columns to read. Default: all.
        filters: Rows to read, as in ``pandas.read_parquet``.
        num_shards: Number of shards. Default: one per file.
        storage_options: Options of the fsspec file system.

    Returns:
        XShards of pandas DataFrames, read eagerly.

    Raises:
        ArgumentError: If an argument is not valid.
        ColumnError: If a column of `columns` or `filters` is missing.
        DataError: If a file is missing or damaged, or files differ in columns or types. Names the file.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_parquet(XShards.partition({"x": np.arange(4), "y": np.arange(4) % 2}, num_shards=2), folder.name)
    >>> read_parquet(folder.name, columns=["x"], filters=[("y", "==", 1)]).to_pandas()
       x
    0  1
    1  3
    >>> folder.cleanup()
    """
    if isinstance(columns, str):
        raise ArgumentError(f"columns={columns!r}: expected a list of names, for instance [{columns!r}].")
    is_list = isinstance(columns, Collection) and len(columns) > 0
    if columns is not None and not (is_list and all(isinstance(name, str) for name in columns)):
        raise wrong("columns", columns, "a list of names")
    _check_filters(filters)
    count = checked_count(num_shards)
    files = listing(paths, storage_options)
    groups = grouped(files, min(count or len(files), len(files)))
    names = None if columns is None else list(columns)
    with own_errors():
        shards = read(groups, _read_group, names, filters, len(groups) < active().cores)
        shard_schemas = shards.transform_shard(schemas.kinds).collect()
        labels = [group[0].label for group in groups]
        return with_shard_count(unify_dtypes(shards, shard_schemas, labels, **WORDS), count)


def _read_group(files: list[File], columns: list[str] | None, filters: Any, threads: bool) -> Any:
    frames = [_read_file(file, columns, filters, threads) for file in files]
    return join_frames(frames, [file.label for file in files], **WORDS)


def _read_file(file: File, columns: list[str] | None, filters: Any, threads: bool) -> Any:
    import fsspec
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    with naming_file_in_errors(file):
        files, target = fsspec.core.url_to_fs(file.url, **file.storage)
        hive = ds.HivePartitioning.discover(infer_dictionary=False)
        data = ds.dataset(
            target, format="parquet", filesystem=files, partitioning=hive, partition_base_dir=file.root or None
        )
        existing = data.schema.names
        for argument, names in (("columns", columns or []), ("filters", _filtered(filters))):
            for name in names:
                if name not in existing:
                    raise ColumnError(
                        f"{argument}=[{name!r}] is not in {file.label}. Columns: {', '.join(existing)}."
                        + suggest(name, existing)
                    )
        condition = None if filters is None else pq.filters_to_expression(filters)
        table = data.to_table(columns=columns, filter=condition, use_threads=threads)
        return table.to_pandas(split_blocks=True, self_destruct=True)


def _check_filters(filters: Any) -> None:
    """Raise if pyarrow does not understand the filters."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if filters is None or isinstance(filters, pc.Expression):
        return
    try:
        pq.filters_to_expression(filters)
    except Exception as error:
        expected = 'tuples such as [("x", ">", 0)]'
        raise ArgumentError(f"filters={shown(filters)}: expected {expected} ({error}).") from error


def _filtered(filters: Any) -> list[str]:
    """Return the columns of filters that are written as lists of tuples."""
    if not isinstance(filters, list | tuple):
        return []
    rows = [entry for group in filters for entry in (group if isinstance(group, list) else [group])]
    return [entry[0] for entry in rows if isinstance(entry, tuple) and entry]


def write_parquet(shards: XShards, path: str | os.PathLike[str]) -> None:
    """Write every shard, from where it is stored, to a parquet file of a folder.

    Named indexes of DataFrames become columns, and so does each entry of a dict of arrays.

    Args:
        shards: The XShards to write.
        path: A new or empty folder, or one that an earlier call wrote, whose files are replaced.

    Raises:
        ArgumentError: If `shards` is not XShards.
        DataError: If the folder holds other files.
    """
    write_parts(shards, path, "parquet", _write)


def _write(shard: Any, file: Any) -> None:
    import pyarrow.parquet as pq

    pq.write_table(to_arrow(schemas.flat(shard) if kind_of(shard) == "frame" else shard), file)
