"""The binary extension of the Open Inference Protocol: JSON, then the raw tensors, little-endian and row by row."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from orca.serving.checks import shown
from orca.serving.datatypes import BYTES, DTYPES
from orca.serving.messages import BINARY, HttpError, Reply, Request, dumps

Array = np.ndarray[Any, Any]
HEADER = b"inference-header-content-length"


def split(request: Request, body: bytes) -> tuple[memoryview | bytes, memoryview]:
    """Return the JSON of a body and what follows it."""
    text = request.headers.get(HEADER)
    if text is None:
        return body, memoryview(b"")
    if not text.isdigit() or len(text) > 18 or int(text) > len(body):
        shown_text = text.decode("latin-1")[:20]
        raise HttpError(400, f"Inference-Header-Content-Length is {shown_text!r}; the body has {len(body)} bytes.")
    view = memoryview(body)
    return view[: int(text)], view[int(text) :]


class Tensors:
    """Takes the raw tensors of a request, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def take(self, name: str, size: Any) -> memoryview:
        """Return the next `size` bytes."""
        rest = len(self._data) - self._position
        if type(size) is not int or not 0 <= size <= rest:
            number = size if type(size) is int else "not an integer"
            raise HttpError(400, f"binary_data_size of {name!r} is {number}; the body has {rest} bytes left.")
        self._position += size
        return self._data[self._position - size : self._position]

    def finish(self) -> None:
        """Refuse bytes that belong to no tensor."""
        if self._position != len(self._data):
            raise HttpError(
                400, f"The tensors have {self._position} bytes by binary_data_size; the body has {len(self._data)}."
            )


def to_array(name: str, datatype: str, shape: list[int], data: memoryview) -> Array:
    """Return raw values as an array, without a copy."""
    dtype = np.dtype(DTYPES[datatype]).newbyteorder("<")
    size = math.prod(shape) * dtype.itemsize
    if size != len(data):
        raise HttpError(
            400,
            f"The input {name!r} of shape {shown(shape)} ({datatype}) has {size} bytes; the request has {len(data)}.",
        )
    return np.frombuffer(data, dtype).reshape(shape)


def to_elements(name: str, shape: list[int], data: memoryview) -> list[bytes]:
    """Return the elements of a BYTES tensor: each has its length in front."""
    elements: list[bytes] = []
    position = 0
    while position < len(data):
        if position + 4 > len(data):
            raise HttpError(400, f"The BYTES of {name!r} end within the length of an element.")
        (length,) = struct.unpack_from("<I", data, position)
        if length > len(data) - position - 4:
            rest = len(data) - position - 4
            raise HttpError(400, f"An element of {name!r} has {length} bytes by its length; {rest} are left.")
        elements.append(bytes(data[position + 4 : position + 4 + length]))
        position += 4 + length
    if len(elements) != math.prod(shape):
        raise HttpError(400, f"The input {name!r} has {math.prod(shape)} {BYTES} by its shape; {len(elements)} follow.")
    return elements


def reply(head: dict[str, Any], tensors: list[Array], headers: list[tuple[bytes, bytes]]) -> Reply:
    """Return a reply whose tensors follow its JSON."""
    json = dumps(head)
    parts = [json, *(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes() for array in tensors)]
    return Reply(b"".join(parts), BINARY, 200, [(HEADER, b"%d" % len(json)), *headers])
