"""read_tfrecord and write_tfrecord: files of tf.train.Example records, read and written by TensorFlow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from orca.errors import ArgumentError, ColumnError, DataError, MissingPackageError, suggest
from orca.shards.readers.paths import File, Paths, checked_count, grouped, listing
from orca.shards.readers.reading import counted, own_errors, read
from orca.shards.readers.writing import write_parts
from orca.shards.tree import describe, join_rows, kind_of, leaves, tree_map
from orca.shards.xshards import XShards

Feature = tuple[str, tuple[int, ...]]
"""A dtype ("int64", "float32", "bytes", "str" or another number) and the shape of one row."""


def read_tfrecord(
    paths: Paths,
    *,
    features: Mapping[str, tuple[Any, Any]] | None = None,
    num_shards: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> XShards:
    """Read TFRecord files of tf.train.Example records as shards of dicts of arrays, one per file, or `num_shards`.

    `features` is ``{name: (dtype, shape)}``, for instance ``{"image": ("uint8", (28, 28)), "id": ("bytes", ())}``;
    bytes that are asked for as numbers are taken as their memory. Without it, the first record of each file tells.
    """
    asked = None if features is None else {name: _feature(name, *entry) for name, entry in features.items()}
    files = listing(paths, storage_options)
    count = checked_count(num_shards)
    groups = grouped(files, min(count or len(files), len(files)))
    with own_errors():
        shards = read(groups, _read_group, asked)
        _check_alike(shards.transform_shard(describe).collect(), [group[0].label for group in groups])
        return counted(shards, count)


def write_tfrecord(shards: XShards, path: str | os.PathLike[str]) -> None:
    """Write every shard to a TFRecord file of a new or empty folder, one tf.train.Example per row.

    Whole numbers and bools become int64, floats float32 (the format has no other), text and bytes bytes. Further
    axes are written flat: give `read_tfrecord` their shape.
    """
    write_parts(shards, path, "tfrecord", _write)


def _feature(name: str, dtype: Any, shape: Any) -> Feature:
    kind = "bytes" if dtype in (bytes, "bytes") else "str" if dtype in (str, "str") else str(np.dtype(dtype))
    if np.dtype("S" if kind == "bytes" else "U" if kind == "str" else kind).kind not in "iufbSU":
        raise ArgumentError(f"features={{{name!r}: ({dtype!r}, …)}}: expected a number, 'bytes' or 'str'.")
    return kind, (int(shape),) if isinstance(shape, int) else tuple(int(side) for side in shape)


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow
    except ImportError as error:
        raise MissingPackageError("TFRecord files need TensorFlow. Run: pip install tensorflow-cpu") from error
    return tensorflow


def _read_group(files: list[File], asked: dict[str, Feature] | None) -> Any:
    found = [_read_file(file, asked) for file in files]
    _check_alike([describe(part) for part in found], [file.label for file in files])
    return join_rows(found)


def _check_alike(found: list[dict[str, str]], labels: list[str]) -> None:
    for told, label in zip(found, labels, strict=True):
        if told != found[0]:
            raise DataError(f"{label} has {told}, {labels[0]} has {found[0]}. Give features={{name: (dtype, shape)}}.")


def _read_file(file: File, asked: dict[str, Feature] | None) -> dict[str, np.ndarray[Any, Any]]:
    if file.size == 0:
        raise DataError(f"{file.label} is empty (0 bytes). Remove it, or leave it out of paths=.")
    tf = _tensorflow()
    records = _records(tf, file)
    first = tf.train.Example.FromString(records[0]).features.feature
    spec = {name: _inferred(entry) for name, entry in first.items()} if asked is None else asked
    made = {}
    for name, (dtype, shape) in sorted(spec.items()) if asked is None else spec.items():
        if name not in first:
            raise ColumnError(
                f"features={name!r} is not in {file.label}, record 1. Features: {', '.join(sorted(first))}."
                + suggest(name, first)
            )
        made[name] = _column(tf, file.label, records, name, first[name].WhichOneof("kind"), dtype, shape)
    return made


def _records(tf: Any, file: File) -> list[bytes]:
    found: list[bytes] = []
    packed = "GZIP" if file.url.lower().endswith(".gz") else ""
    with _here(file) as path:
        try:
            for raw in tf.data.TFRecordDataset(path, compression_type=packed).as_numpy_iterator():
                found.append(raw)
        except tf.errors.OpError as error:
            raise DataError(
                f"{file.label}, record {len(found) + 1}: the file is truncated or damaged here ({error.message[:120]})."
            ) from error
    if not found:
        raise DataError(f"{file.label} holds no record.")
    try:
        tf.train.Example.FromString(found[0])
    except Exception as error:
        raise DataError(f"{file.label}, record 1 is not a tf.train.Example.") from error
    return found


@contextmanager
def _here(file: File) -> Iterator[str]:
    """A path of this machine with the file's bytes; TensorFlow knows no fsspec."""
    if file.local:
        yield file.url
        return
    import fsspec

    files, target = fsspec.core.url_to_fs(file.url, **file.storage)
    with tempfile.TemporaryDirectory() as folder:
        files.get_file(target, f"{folder}/records")
        yield f"{folder}/records"


def _inferred(entry: Any) -> Feature:
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
                    f"{label}, record {number}: feature {name!r} is missing, or has not {length} values of "
                    f"{stored.name}. Give features={{{name!r}: (dtype, shape)}}."
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
            raise DataError(f"{label}: feature {name!r} holds floats; {dtype} would cut them off.")
        cast = values.astype(dtype)
        if cast.dtype.kind in "iu" and not np.array_equal(cast, values):
            raise DataError(f"{label}: feature {name!r} has numbers that {dtype} cannot hold.")
        values = cast
    return np.asarray(values).reshape(len(records), *shape)


def _write(shard: Any, file: Any) -> None:
    tf = _tensorflow()
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
        with open(f"{folder}/records", "rb") as done:
            while block := done.read(1 << 24):
                file.write(block)


def _lists(tf: Any, name: str, array: np.ndarray[Any, Any]) -> list[Any]:
    """One tf.train.Feature per row."""
    flat = array.reshape(len(array), -1)
    if array.dtype.kind in "iub":
        return [tf.train.Feature(int64_list=tf.train.Int64List(value=row)) for row in flat.astype("i8", copy=False)]
    if array.dtype.kind == "f":
        return [tf.train.Feature(float_list=tf.train.FloatList(value=row)) for row in flat]
    made = []
    for number, row in enumerate(flat):
        values = [value.encode() if isinstance(value, str) else value for value in row]
        if not all(isinstance(value, bytes) for value in values):
            raise DataError(f"{name!r}, row {number}: {row[0]!r} is neither number, text nor bytes. Fill or drop it.")
        made.append(tf.train.Feature(bytes_list=tf.train.BytesList(value=values)))
    return made
