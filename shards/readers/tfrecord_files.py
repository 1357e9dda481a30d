"""read_tfrecord and write_tfrecord: files of tf.train.Example records, read and written by TensorFlow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from orca.core.arguments import check_mapping, shown
from orca.errors import ArgumentError, ColumnError, DataError, MissingPackageError, suggest
from orca.shards.engines.base import Shard
from orca.shards.readers.paths import File, Paths, checked_count, grouped, listing
from orca.shards.readers.reading import own_errors, read, with_shard_count
from orca.shards.readers.writing import write_parts
from orca.shards.tree import describe, join_rows, kind_of, leaves, tree_map
from orca.shards.xshards import XShards

Feature = tuple[str, tuple[int, ...]]
"""A dtype ("bytes", "str" or a number such as "int64") and the shape of one row."""


def read_tfrecord(
    paths: Paths,
    *,
    features: Mapping[str, tuple[Any, Any]] | None = None,
    num_shards: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> XShards:
    """Read TFRecord files of tf.train.Example records as shards of dicts of arrays.

    Args:
        paths: A path, a folder, a glob, an fsspec URL, or a list of them.
        features: ``{name: (dtype, shape)}``, such as ``{"image": ("uint8", (28, 28)), "id": ("bytes", ())}``. Bytes
            with a numeric dtype are reinterpreted. Default: inferred from the first record of each file.
        num_shards: Number of shards. Default: one per file.
        storage_options: Options of the fsspec file system.

    Returns:
        XShards of dicts of arrays, read eagerly.

    Raises:
        ArgumentError: If a dtype is not supported.
        ColumnError: If a feature is missing.
        DataError: If a file is missing or damaged, or does not match `features`. Names file and record.
        MissingPackageError: If TensorFlow is not installed.
    """
    spec = None if features is None else _features(features)
    count = checked_count(num_shards)
    files = listing(paths, storage_options)
    groups = grouped(files, min(count or len(files), len(files)))
    with own_errors():
        shards = read(groups, _read_group, spec)
        _check_alike(shards.transform_shard(describe).collect(), [group[0].label for group in groups])
        return with_shard_count(shards, count)


def write_tfrecord(shards: XShards, path: str | os.PathLike[str]) -> None:
    """Write every shard, from where it is stored, to a TFRecord file of a folder, one tf.train.Example per row.

    Integers and bools become int64, floats float32 (the format has no other), text and bytes become bytes. Further
    axes are flattened: pass their shape to `read_tfrecord`.

    Args:
        shards: The XShards to write.
        path: A new or empty folder, or one that an earlier call wrote, whose files are replaced.

    Raises:
        ArgumentError: If `shards` is not XShards.
        DataError: If the folder holds other files, or a value cannot be written.
    """
    write_parts(shards, path, "tfrecord", _write)


def _features(features: Mapping[str, tuple[Any, Any]]) -> dict[str, Feature]:
    """Check the argument ``features=``."""
    try:
        return {name: _feature(name, *entry) for name, entry in check_mapping("features", features).items()}
    except (TypeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        expected = '{name: (dtype, shape)}, such as {"image": ("uint8", (28, 28))}'
        raise ArgumentError(f"features={shown(features)}: expected {expected} ({error}).") from error


def _feature(name: str, dtype: Any, shape: Any) -> Feature:
    kind = "bytes" if dtype in (bytes, "bytes") else "str" if dtype in (str, "str") else str(np.dtype(dtype))
    if np.dtype("S" if kind == "bytes" else "U" if kind == "str" else kind).kind not in "iufbSU":
        raise ArgumentError(f"features={{{name!r}: ({dtype!r}, …)}}: expected a number, 'bytes' or 'str'.")
    return kind, (int(shape),) if isinstance(shape, int) else tuple(int(side) for side in shape)


def tensorflow() -> Any:
    """Return the module, or raise an error that says how to install it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingPackageError("TFRecord files need TensorFlow. Run: pip install tensorflow-cpu") from error
    return tf


def _read_group(files: list[File], features: dict[str, Feature] | None) -> Shard:
    parts = [_read_file(file, features) for file in files]
    _check_alike([describe(part) for part in parts], [file.label for file in files])
    return join_rows(parts)


def _check_alike(dtypes: list[dict[str, str]], labels: list[str]) -> None:
    for own, label in zip(dtypes, labels, strict=True):
        if own != dtypes[0]:
            raise DataError(f"{label} has {own}, {labels[0]} has {dtypes[0]}. Give features={{name: (dtype, shape)}}.")


def _read_file(file: File, features: dict[str, Feature] | None) -> dict[str, np.ndarray[Any, Any]]:
    if file.size == 0:
        raise DataError(f"{file.label} is empty (0 bytes). Remove it, or leave it out of paths=.")
    tf = tensorflow()
    records = _records(tf, file)
    first = tf.train.Example.FromString(records[0]).features.feature
    if features is None:
        features = {name: feature_of(first[name]) for name in sorted(first)}
    columns = {}
    for name, (dtype, shape) in features.items():
        if name not in first:
            raise ColumnError(
                f"features={name!r} is not in {file.label}, record 1. Features: {', '.join(sorted(first))}."
                + suggest(name, first)
            )
        columns[name] = _column(tf, file.label, records, name, first[name].WhichOneof("kind"), dtype, shape)
    return columns


def _records(tf: Any, file: File) -> list[bytes]:
    records: list[bytes] = []
    compression = "GZIP" if file.url.lower().endswith(".gz") else ""
    with local_copy(file) as path:
        try:
            for raw in tf.data.TFRecordDataset(path, compression_type=compression).as_numpy_iterator():
                records.append(raw)
        except tf.errors.OpError as error:
            raise DataError(
                f"{file.label}, record {len(records) + 1}: the file is truncated or damaged here "
                f"({error.message[:120]})."
            ) from error
    if not records:
        raise DataError(f"{file.label} holds no record.")
    try:
        tf.train.Example.FromString(records[0])
    except Exception as error:
        raise DataError(f"{file.label}, record 1 is not a tf.train.Example.") from error
    return records


@contextmanager
def local_copy(file: File) -> Iterator[str]:
    """Provide the file at a local path, because TensorFlow does not support fsspec."""
    if file.local:
        yield file.url
        return
    import fsspec

    files, target = fsspec.core.url_to_fs(file.url, **file.storage)
    with tempfile.TemporaryDirectory() as folder:
        files.get_file(target, f"{folder}/records")
        yield f"{folder}/records"


def feature_of(entry: Any) -> Feature:
    """Return the dtype and shape of a feature of a record."""
    kind = entry.WhichOneof("kind")
    length = len(getattr(entry, kind).value) if kind else 0
    dtype = {"int64_list": "int64", "float_list": "float32"}.get(kind, "bytes")
    return dtype, () if length == 1 else (length,)


def _column(
    tf: Any, label: str, records: list[bytes], name: str, kind: str, dtype: str, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    length = int(np.prod(shape))
    memory = kind == "bytes_list" and dtype not in ("bytes", "str")
    stored = {"int64_list": tf.int64, "float_list": tf.float32}.get(kind, tf.string)
    single = tf.io.FixedLenFeature([1 if memory else length], stored)
    try:
        values = tf.io.parse_example(records, {name: single})[name].numpy()
    except tf.errors.OpError as error:
        for number, raw in enumerate(records, start=1):
            try:
                tf.io.parse_single_example(raw, {name: single})
            except tf.errors.OpError:
                raise DataError(
                    f"{label}, record {number}: feature {name!r} is missing, or does not have {length} values "
                    f"of {stored.name}. Give features={{{name!r}: (dtype, shape)}}."
                ) from error
        raise DataError(f"{label}: feature {name!r} cannot be read: {error.message}") from error
    if memory:
        size = length * np.dtype(dtype).itemsize
        for number, (raw,) in enumerate(values, start=1):
            if len(raw) != size:
                raise DataError(f"{label}, record {number}: feature {name!r} has {len(raw)} bytes, expected {size}.")
        values = np.frombuffer(b"".join(values[:, 0]), dtype)
    elif dtype == "str":
        values = np.array([text.decode() for text in values.reshape(-1)], object)
    elif dtype != "bytes":
        if np.dtype(dtype).kind in "iub" and values.dtype.kind == "f":
            raise DataError(f"{label}: feature {name!r} holds floats, which {dtype} would truncate.")
        cast = values.astype(dtype)
        if cast.dtype.kind in "iu" and not np.array_equal(cast, values):
            raise DataError(f"{label}: feature {name!r} has numbers that {dtype} cannot hold.")
        values = cast
    return np.asarray(values).reshape(len(records), *shape)


def _write(shard: Any, file: Any) -> None:
    tf = tensorflow()
    if kind_of(shard) == "frame":
        shard = {str(name): column.to_numpy() for name, column in shard.items()}
    elif kind_of(shard) == "table":
        shard = {name: shard.column(name).to_numpy() for name in shard.column_names}
    tree = tree_map(np.asarray, shard if isinstance(shard, dict) else {"value": shard})
    columns = {name: _lists(tf, name, array) for name, array in leaves(tree)}
    rows = len(next(iter(columns.values()))) if columns else 0
    with tempfile.TemporaryDirectory() as folder:
        with tf.io.TFRecordWriter(f"{folder}/records") as writer:
            for row in range(rows):
                feature = {name: column[row] for name, column in columns.items()}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        with open(f"{folder}/records", "rb") as records:
            while block := records.read(1 << 24):
                file.write(block)


def _lists(tf: Any, name: str, array: np.ndarray[Any, Any]) -> list[Any]:
    """Return one tf.train.Feature per row."""
    flat = array.reshape(len(array), -1)
    if array.dtype.kind in "iub":
        return [tf.train.Feature(int64_list=tf.train.Int64List(value=row)) for row in flat.astype("i8", copy=False)]
    if array.dtype.kind == "f":
        return [tf.train.Feature(float_list=tf.train.FloatList(value=row)) for row in flat]
    features = []
    for number, row in enumerate(flat):
        values = [value.encode() if isinstance(value, str) else value for value in row]
        if not all(isinstance(value, bytes) for value in values):
            raise DataError(f"{name!r}, row {number}: {row[0]!r} is neither a number, text nor bytes. Fill or drop it.")
        features.append(tf.train.Feature(bytes_list=tf.train.BytesList(value=values)))
    return features
