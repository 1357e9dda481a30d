"""Records of files, from any byte on: TFRecords, records of one length, lines, whole files."""

from __future__ import annotations

import bisect
import gzip
import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from orca.errors import DataError
from orca.shards.readers.paths import File
from orca.shards.readers.tfrecord_files import local_copy

Record = tuple[bytes, bytes]
"""A key, as TensorFlow's readers form it, and the content."""
_HEADER, _FRAME = 12, 16
"""Bytes before the content of a TFRecord, and around it."""
_SAMPLE = 64


@dataclass(frozen=True)
class Piece:
    """A file, or the records of it that begin in a range of bytes."""

    path: str
    label: str
    low: int = 0
    high: int | None = None
    """The end of the range; None for the whole file."""

    storage: dict[str, Any] = field(default_factory=dict, hash=False)
    """Options of the fsspec file system."""

    @property
    def is_whole(self) -> bool:
        return self.high is None

    @contextmanager
    def here(self) -> Iterator[Piece]:
        """Provide the piece with a local path: a copy, if the file is on another file system."""
        with local_copy(File(self.path, self.label, 0, "", self.storage)) as path:
            yield replace(self, path=path)


@dataclass(frozen=True)
class Format:
    """How files are cut into records."""

    kind: str
    """"tfrecord", "fixed", "lines" or "whole"."""
    compression: str = ""
    record: int = 0
    header: int = 0
    footer: int = 0
    hop: int = 0
    """For "fixed": bytes of a record, before the first, after the last, and from one to the next."""
    skipped_lines: int = 0

    @property
    def splits(self) -> bool:
        """Whether records can be found from any byte on."""
        return self.kind != "whole" and not self.compression

    def records(self, piece: Piece) -> Iterator[Record]:
        """Yield the records of a piece."""
        count = 0
        try:
            with piece.here() as local:
                for key, content in _KINDS[self.kind](self, local):
                    yield f"{piece.path}:{key}".encode() if key != "" else piece.path.encode(), content
                    count += 1
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(piece, count, error) from error

    def record_bytes(self, path: str, size: int) -> float:
        """Return the mean number of bytes of a record, estimated from the beginning of a file."""
        if self.kind == "fixed":
            return self.hop or self.record
        if self.kind == "tfrecord" and self.splits:
            starts = list(itertools.islice(record_starts(path), _SAMPLE + 1))
            return (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else float(size)
        if self.kind == "lines" and self.splits:
            with open(path, "rb") as file:
                sample = file.read(1 << 16)
            return len(sample) / (sample.count(b"\n") or 1)
        return float(size)

    def numbers(self, piece: Piece) -> tuple[int, int, int]:
        """Return the number of the first record of a piece, the count of its records, and where the first begins."""
        size = os.path.getsize(piece.path)
        high = size if piece.high is None else piece.high
        if self.kind == "fixed":
            starts = _fixed_starts(self, size)
            first, last = bisect.bisect_left(starts, piece.low), bisect.bisect_left(starts, high)
            return first, last - first, starts[first] if first < last else high
        before = count = 0
        begin = high
        for start in record_starts(piece.path) if self.kind == "tfrecord" else _line_starts(piece.path):
            if start >= high:
                break
            if start < piece.low:
                before += 1
                continue
            begin = begin if count else start
            count += 1
        return before, count, begin


def record_starts(path: str) -> Iterator[int]:
    """Yield the position of each record of a TFRecord file; only its lengths are read."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        position = 0
        while position < size:
            yield position
            file.seek(position)
            head = file.read(8)
            if len(head) < 8:
                raise DataError(f"{path}: the file is truncated after byte {position}.")
            position += _FRAME + struct.unpack("<Q", head)[0]


def _tfrecords(form: Format, piece: Piece) -> Iterator[tuple[Any, bytes]]:
    import tensorflow.compat.v1 as v1
    from tensorflow.python.lib.io import tf_record

    if form.compression:
        options = v1.io.TFRecordOptions(getattr(v1.io.TFRecordCompressionType, form.compression))
        position = count = 0
        try:
            for content in tf_record.tf_record_iterator(piece.path, options):
                yield position, content
                position += _FRAME + len(content)
                count += 1
        except v1.errors.OpError as error:
            raise _unreadable(piece, count, error) from error
        return
    reader = tf_record.tf_record_random_reader(piece.path)
    _, count, position = form.numbers(piece)
    for number in range(count):
        start = position
        try:
            content, position = reader.read(start)
        except (IndexError, RuntimeError, v1.errors.OpError) as error:
            raise _unreadable(piece, number, error) from error
        yield start, content


def _fixed_starts(form: Format, size: int) -> range:
    return range(form.header, size - form.footer - form.record + 1, form.hop or form.record)


def _fixed(form: Format, piece: Piece) -> Iterator[tuple[Any, bytes]]:
    if form.compression:
        data = _decompressed(form, piece)
        for number, start in enumerate(_fixed_starts(form, len(data))):
            yield number, data[start : start + form.record]
        return
    first, count, start = form.numbers(piece)
    with open(piece.path, "rb") as file:
        for number in range(first, first + count):
            file.seek(start)
            yield number, file.read(form.record)
            start += form.hop or form.record


def _decompressed(form: Format, piece: Piece) -> bytes:
    with open(piece.path, "rb") as file:
        content = file.read()
    return gzip.decompress(content) if form.compression == "GZIP" else zlib.decompress(content)


def _line_starts(path: str) -> Iterator[int]:
    position = 0
    with open(path, "rb") as file:
        for line in file:
            yield position
            position += len(line)


def _lines(form: Format, piece: Piece) -> Iterator[tuple[Any, bytes]]:
    high = os.path.getsize(piece.path) if piece.high is None else piece.high
    position = 0
    with open(piece.path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if position >= high:
                return
            if position >= piece.low and number > form.skipped_lines:
                yield number, line.removesuffix(b"\n").removesuffix(b"\r")
            position += len(line)


def _whole(form: Format, piece: Piece) -> Iterator[tuple[Any, bytes]]:
    with open(piece.path, "rb") as file:
        yield "", file.read()


_KINDS = {"tfrecord": _tfrecords, "fixed": _fixed, "lines": _lines, "whole": _whole}


def _unreadable(piece: Piece, number: int, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"{piece.label} was removed, or is missing on this machine. Every machine needs access to {piece.path!r}."
        )
    text = " ".join(str(error).split())
    return DataError(
        f"{piece.label}, record {number + 1} from byte {piece.low} on: the file is truncated or damaged ({text[:160]})."
    )
