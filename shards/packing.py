"""Packs any object into one blob or file: a pickle, followed by its large buffers, aligned for mapping.

Layout: ``magic, number of buffers, length of pickle, (offset, length) per buffer, pickle, buffers``, every
buffer aligned to 64 bytes. Reading maps the file; arrays are views into the map, so all processes of a host
share one copy and the page cache decides what is in memory.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import pickle
import struct
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle

from orca.core.limits import explained_limits
from orca.core.scratch import write_pieces
from orca.errors import DataError

_MAGIC = b"ORCASHR1"
_ALIGN = 64
# The standard library defines this flag only since Python 3.13.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def _aligned(position: int) -> int:
    return -(-position // _ALIGN) * _ALIGN


def pieces(shard: Any) -> Iterator[bytes | memoryview]:
    """Yield the blob's consecutive pieces; the large ones are the object's own memory, not copies."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < 4096:
            return True
        buffers.append(view)
        return False

    body = cloudpickle.dumps(shard, protocol=5, buffer_callback=keep)
    head_size = len(_MAGIC) + 16 + 16 * len(buffers)
    position = head_size + len(body)
    table = []
    for view in buffers:
        start = _aligned(position)
        table.append((start, view.nbytes))
        position = start + view.nbytes
    head = _MAGIC + struct.pack("<QQ", len(buffers), len(body))
    yield head + b"".join(struct.pack("<QQ", *entry) for entry in table) + body
    position = head_size + len(body)
    for view, (start, length) in zip(buffers, table, strict=True):
        if start > position:
            yield bytes(start - position)
        yield view
        position = start + length


def pack(shard: Any) -> bytes:
    """Return the object as one blob.

    >>> unpack(pack({"x": [1, 2]}))
    {'x': [1, 2]}
    """
    return b"".join(pieces(shard))


def unpack(blob: bytes | memoryview) -> Any:
    """Rebuild the object; its buffers are views into `blob`."""
    view = memoryview(blob)
    try:
        return _unpack(view)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"A shard cannot be read: {type(error).__name__}: {error}") from error


def _unpack(view: memoryview) -> Any:
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise DataError("A shard cannot be read: it is not a shard written by Orca, or damaged.")
    count, body_length = struct.unpack_from("<QQ", view, len(_MAGIC))
    table_start = len(_MAGIC) + 16
    body_start = table_start + 16 * count
    buffers = []
    position = body_start + body_length
    for index in range(count):
        start, length = struct.unpack_from("<QQ", view, table_start + 16 * index)
        if start != _aligned(position) or start + length > view.nbytes:
            raise DataError("A shard cannot be read: it is damaged.")
        buffers.append(view[start : start + length])
        position = start + length
    # Nothing is unpickled from the wrong place, where any byte could ask for any amount of memory.
    if position != view.nbytes:
        raise DataError("A shard cannot be read: it is damaged.")
    return pickle.loads(view[body_start : body_start + body_length], buffers=buffers)


def write_file(path: str, shard: Any) -> int:
    """Write the object to a file and return its size in bytes."""
    return write_pieces(path, pieces(shard))


def read_file(path: str) -> Any:
    """Map a file and rebuild its object. Writing to its arrays affects neither the file nor other readers."""
    with explained_limits(), open(path, "rb") as file:
        return unpack(_map(file.fileno()))


def _map(descriptor: int) -> memoryview:
    """Map a file privately, without holding a descriptor: data may have more shards than a process may open files.

    Pages are shared until written to, and arrays are writable, as torch.from_numpy expects. No swap is reserved: the
    file may be larger than memory.
    """
    flags, protection = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, 0, flags=flags, prot=protection, trackfd=False))
    # Before Python 3.13, mmap keeps a duplicate of the descriptor.
    size = os.fstat(descriptor).st_size
    address = _libc().mmap(None, size, protection, flags, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size:,} bytes: {os.strerror(number)}")
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _libc().munmap, address, size).atexit = False
    return memoryview(memory).cast("B")


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_size_t)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
