"""Finds the line of a csv file that a reader failed on. Slow, and only used after a failure."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from orca.errors import DataError

_STEP = 1 << 24
_CONVERSION = re.compile(r"In CSV column #(\d+):.*conversion error to (\w+)(?:.*invalid value '(.*)')?", re.DOTALL)
_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def lines_before(data: Any, position: int) -> int:
    """Count the lines that end before a byte."""
    return sum(bytes(data[at : min(at + _STEP, position)]).count(b"\n") for at in range(0, position, _STEP))


def records(data: Any, start: int, stop: int, sep: str, quote: str) -> Iterator[tuple[int, list[str]]]:
    """Yield every record with the number of the line it begins on; blank lines are skipped."""
    base = lines_before(data, start)
    lines = io.TextIOWrapper(io.BytesIO(data[start:stop]), encoding="utf-8", errors="surrogateescape", newline="")
    limit = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader(lines, delimiter=sep, quotechar=quote)
        before = 0
        for fields in reader:
            if fields:
                yield base + before + 1, fields
            before = reader.line_num
    finally:
        csv.field_size_limit(limit)


def explained(
    error: Exception, label: str, data: Any, span: tuple[int, int], names: Sequence[Any], sep: str, quote: str
) -> DataError:
    """Return the error of pyarrow's reader with the file and its line."""
    match = _CONVERSION.search(str(error))
    if match and "UTF8" in str(error):
        return undecodable(label, data, span[0])
    for line, fields in records(data, *span, sep, quote):
        if match is None and len(fields) != len(names):
            text = sep.join(fields).encode("utf-8", "replace").decode()
            return DataError(f"{label}, line {line}: expected {len(names)} fields, found {len(fields)}: {text[:80]!r}.")
        if match is not None:
            value = fields[int(match.group(1))] if len(fields) == len(names) else None
            if value is not None and value.strip() == (match.group(3) or "").strip():
                name = names[int(match.group(1))]
                return DataError(f"{label}, line {line}: column {name!r} has {value!r}, which is not {match.group(2)}.")
    return DataError(f"{label} cannot be read: {' '.join(str(error).split())}")


def line_of_row(data: Any, span: tuple[int, int], sep: str, quote: str, row: int) -> int | None:
    """Return the line that a row (counted from 0) begins on."""
    for number, (line, _) in enumerate(records(data, *span, sep, quote)):
        if number == row:
            return line
    return None


def undecodable(label: str, data: Any, start: int = 0, encoding: str = "utf-8") -> DataError:
    """Return an error that names the first line whose bytes are not text."""
    line = lines_before(data, start)
    for raw in io.BytesIO(data[start:]):
        line += 1
        try:
            raw.decode(encoding)
        except UnicodeDecodeError as error:
            bad = raw[error.start]
            return DataError(
                f"{label}, line {line}: byte 0x{bad:02x} cannot be read as {encoding}. "
                "Give the file's encoding, for instance encoding='latin-1'."
            )
    return DataError(f"{label} cannot be read as {encoding}. Give encoding=.")


def unclosed(label: str, data: Any, span: tuple[int, int], sep: str, quote: str) -> DataError:
    """Return an error that names the line of a quote that is never closed: its record runs to the end of the file."""
    line = 0
    for line, _ in records(data, *span, sep, quote):  # noqa: B007
        pass
    return DataError(f"{label}, line {line}: a quote ({quote}) is opened here and never closed.")


def of_pandas(error: Exception, label: str, data: Any, sep: str, quote: str, encoding: str) -> DataError:
    """Return the error of pandas' reader with the file and, if it names one, the line."""
    text = " ".join(str(error).split())
    match = _FIELDS.search(text)
    if match:
        return DataError(f"{label}, line {match.group(2)}: expected {match.group(1)} fields, found {match.group(3)}.")
    if isinstance(error, UnicodeError):
        return undecodable(label, data, encoding=encoding)
    if "EOF inside string" in text and len(sep) == len(quote) == 1:
        return unclosed(label, data, (0, len(data)), sep, quote)
    return DataError(f"{label} cannot be read: {type(error).__name__}: {text}")
