"""tf.train.Example records of a dataset: TFRecord parts, read as messages, arrays, shards or a tf.data.Dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from orca.errors import ArgumentError, DataError
from orca.shards.readers.tfrecord_files import feature_of, tensorflow
from orca.store.data.parts import PartWriter

_PART_RECORDS = 4096
"""Records of a part, so that several workers can read a dataset."""


def is_example(value: Any) -> bool:
    """Return whether an object is a tf.train.Example, without importing TensorFlow."""
    kind = type(value)
    return kind.__name__ == "Example" and kind.__module__.startswith("tensorflow.")


def examples_of(data: Any) -> Iterator[Any] | None:
    """Return the records if the data is a tf.train.Example or an iterable of them; else None."""
    if is_example(data):
        return iter([data])
    if isinstance(data, str | bytes | Mapping) or hasattr(data, "shape") or not isinstance(data, Iterable):
        return None
    if isinstance(data, Sequence):
        return iter(data) if len(data) and is_example(data[0]) else None
    if not isinstance(data, Iterator):
        return None
    first = next(data, None)
    return chain([first], data) if is_example(first) else None


def write_records(writer: PartWriter, records: Iterator[Any]) -> list[dict[str, Any]]:
    """Write records as TFRecord parts; return their entries, each with the form of its features."""
    tf = tensorflow()
    entries: list[dict[str, Any]] = []
    while block := list(islice(records, _PART_RECORDS)):
        for number, record in enumerate(block):
            if not is_example(record):
                place = len(entries) * _PART_RECORDS + number
                raise DataError(f"data[{place}] is a {type(record).__name__}; expected tf.train.Example records only.")
        part = writer.part(str(len(entries)), "tfrecord", len(block))
        with part as target, tf.io.TFRecordWriter(str(target.path)) as file:
            for record in block:
                file.write(record.SerializeToString())
        entries.append({**target.entry, "features": _features(block)})
    return entries


def _features(block: list[Any]) -> dict[str, list[Any]] | None:
    """Return (dtype, shape) by name if all records have the same features with the same lengths."""
    forms = None
    for record in block:
        found = {name: feature_of(entry) for name, entry in sorted(record.features.feature.items())}
        if forms is None:
            forms = found
        elif forms != found:
            return None
    return {name: [dtype, list(shape)] for name, (dtype, shape) in (forms or {}).items()}


def features_of(parts: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the features to parse: as chosen, or as all records have them."""
    if chosen is not None:
        return dict(chosen)
    forms = [part["features"] for part in parts]
    if forms[0] is None or any(form != forms[0] for form in forms):
        raise ArgumentError(
            "features=None: the records have different features, or features of different lengths. Pass "
            'features={"image": ("uint8", (28, 28)), "label": ("int64", ())}.'
        )
    return {name: (dtype, tuple(shape)) for name, (dtype, shape) in forms[0].items()}


def read_messages(paths: Sequence[Path], parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return all records as tf.train.Example messages."""
    tf = tensorflow()
    messages = []
    for path, part in zip(paths, parts, strict=True):
        try:
            raw = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        except tf.errors.OpError as error:
            raise DataError(f"The store is damaged: {part['file']!r} cannot be read: {error.message[:120]}") from error
        messages += [tf.train.Example.FromString(record) for record in raw]
    return messages


def as_dataset(paths: Sequence[Path], features: Mapping[str, Any]) -> Any:
    """Return a tf.data.Dataset of dicts of tensors, one per record."""
    import numpy as np

    tf = tensorflow()
    plain, raw = {}, {}
    for name, (dtype, shape) in features.items():
        kind = "bytes" if dtype in (bytes, "bytes", str, "str") else np.dtype(dtype).name
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        if kind == "bytes":
            plain[name] = tf.io.FixedLenFeature(sides, tf.string)
        elif kind in ("int64", "float32"):
            plain[name] = tf.io.FixedLenFeature(sides, getattr(tf, kind))
        else:
            raw[name] = kind, sides
            plain[name] = tf.io.FixedLenFeature((), tf.string)

    def parse(record: Any) -> Any:
        columns = tf.io.parse_single_example(record, plain)
        for name, (kind, sides) in raw.items():
            columns[name] = tf.reshape(tf.io.decode_raw(columns[name], getattr(tf, kind)), sides)
        return columns

    return tf.data.TFRecordDataset([str(path) for path in paths]).map(parse)
