"""The wire format of protocol buffers: enough to read messages by field numbers."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from orca.errors import DataError

Fields = dict[int, list[Any]]


def fields(data: bytes | memoryview) -> Fields:
    """Return the values of a message by field number: integers, or bytes for everything with a length.

    Numbers of fixed size are returned as bytes, because the message does not say whether they are floats.
    """
    found: Fields = {}
    place, end = 0, len(data)
    view = memoryview(data)
    while place < end:
        key, place = _varint(view, place)
        kind = key & 7
        value: Any
        if kind == 0:
            value, place = _varint(view, place)
        elif kind == 1:
            value, place = view[place : place + 8], place + 8
        elif kind == 2:
            size, place = _varint(view, place)
            value, place = view[place : place + size], place + size
        elif kind == 5:
            value, place = view[place : place + 4], place + 4
        else:
            raise DataError("The file is not a BigDL model: it is not a protocol buffer.")
        if place > end:
            raise DataError("The file is not a BigDL model, or it was cut off.")
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(view) or shift > 63:
            raise DataError("The file is not a BigDL model, or it was cut off.")
        byte = view[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def text(message: Fields, field: int) -> str:
    """Return a string, empty if it is missing."""
    try:
        return bytes(message[field][-1]).decode() if field in message else ""
    except (UnicodeDecodeError, TypeError):
        raise DataError("The file is not a BigDL model: a name is not text.") from None


def texts(message: Fields, field: int) -> list[str]:
    """Return repeated strings."""
    return [bytes(value).decode() for value in message.get(field, [])]


def integer(message: Fields, field: int, bits: int = 32) -> int:
    """Return a signed integer, 0 if it is missing."""
    return _signed(message[field][-1], bits) if field in message else 0


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def integers(message: Fields, field: int) -> list[int]:
    """Return repeated 32-bit integers, packed or not."""
    values: list[int] = []
    for value in message.get(field, []):
        if isinstance(value, int):
            values.append(_signed(value, 32))
            continue
        place = 0
        while place < len(value):
            number, place = _varint(value, place)
            values.append(_signed(number, 32))
    return values


def numbers(message: Fields, field: int, dtype: str) -> Any:
    """Return repeated floats ("<f4") or doubles ("<f8"), packed or not, as an array."""
    return np.frombuffer(b"".join(bytes(value) for value in message.get(field, [])), dtype=dtype)


def number(message: Fields, field: int, form: str) -> float:
    """Return one float ("<f") or double ("<d"), 0 if it is missing."""
    return float(struct.unpack(form, bytes(message[field][-1]))[0]) if field in message else 0.0


def mapping(message: Fields, field: int) -> dict[str, bytes | memoryview]:
    """Return a map from strings to messages."""
    entries = [fields(value) for value in message.get(field, [])]
    return {text(entry, 1): entry[2][-1] if 2 in entry else b"" for entry in entries}
