"""Bytes in Orca's own formats: packed shards, and what a peer sends to the channel before and after authentication."""

from __future__ import annotations

import multiprocessing.connection as mpc
import pickle
import queue
import socket
import struct
import threading
from collections import deque
from typing import Any

import numpy as np
from hypothesis import strategies as st

from orca.launch.base import Hello, Meeting
from orca.launch.channel import GOODBYE, Door, Link, Listening
from orca.shards.packing import pack, unpack
from tests.fuzzing.mutations import EDITS, damaged

SHARDS = [
    pack({"x": np.arange(2000.0), "y": np.arange(3)}),
    pack([np.zeros((3, 2000), "f4"), np.ones(5000, "i1"), "text"]),
    pack({"a": [1, 2.5, None], "b": ("c", b"d")}),
]
_HEAD = struct.Struct("<8sQQ")
_SMALL = pickle.dumps({"a": 1}, protocol=5)
SECONDS = 5.0


def check_packing(data: bytes) -> None:
    """A shard with a damaged header, table, pickle or buffer is read, or refused with a DataError."""
    if len(data) < 4:
        content = data
    elif data[0] % 4 == 0:
        # A header and a table of random bytes, and a pickle that is intact.
        content = b"ORCASHR1" + data[1:] + _SMALL
    elif data[0] % 4 == 1:
        content = SHARDS[data[1] % len(SHARDS)][: int.from_bytes(data[2:5], "little")]
    else:
        content = _edited(SHARDS[data[1] % len(SHARDS)], data[2:])
    for leaf in _arrays(unpack(content)):
        leaf.tobytes()


def _edited(content: bytes, edits: bytes) -> bytes:
    """Change bytes of the header, the table and the buffers; a pickle of foreign bytes could do anything."""
    _, count, length = _HEAD.unpack_from(content)
    body = range(_HEAD.size + 16 * count, _HEAD.size + 16 * count + length)
    changed = bytearray(content)
    for low in range(0, len(edits) - 3, 4):
        place = int.from_bytes(edits[low : low + 3], "little") % len(content)
        # Most edits are at the front, where the format is.
        place = place if edits[low + 2] & 1 else place % body.start
        if place not in body:
            changed[place] = edits[low + 3]
    return bytes(changed)


def _arrays(tree: Any) -> list[Any]:
    if isinstance(tree, np.ndarray):
        return [tree]
    entries = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [array for entry in entries for array in _arrays(entry)]


class _Doorless(Listening):
    """Lets peers in like the driver's door, without a socket that listens."""

    def __init__(self, key: bytes) -> None:
        self.meeting = Meeting("127.0.0.1", 0, key)
        self._strangers: deque[mpc.Connection] = deque()
        self._lock = threading.Lock()
        self.served = 0

    def _serve(self, connection: Any) -> None:  # type: ignore[override]
        self.served += 1
        connection.close()


DOOR = _Doorless(bytes(range(32)))


def check_handshake(data: bytes) -> None:
    """A stranger's bytes never get in, and its connection is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data[:60_000])
        theirs.shutdown(socket.SHUT_WR)
        connection = mpc.Connection(ours.detach())
        DOOR._let_in(connection)
        assert DOOR.served == 0, "a stranger was let in"
        assert connection.closed, "the connection of a stranger stays open"


def check_messages(data: bytes) -> None:
    """Frames of an authenticated peer arrive, or end the connection with a goodbye; no thread dies of them."""
    ours, theirs = socket.socketpair()
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    trouble: list[Any] = []
    old, threading.excepthook = threading.excepthook, trouble.append
    try:
        with theirs:
            theirs.sendall(_frames(data))
            theirs.shutdown(socket.SHUT_WR)
            link = Link(mpc.Connection(ours.detach()), heard.put)
            link.open()
            while heard.get(timeout=SECONDS) is not GOODBYE:
                pass
            link.close(0.5)
    except queue.Empty:
        raise AssertionError(f"no goodbye within {SECONDS:.0f} s: {trouble}") from None
    finally:
        threading.excepthook = old
    assert not trouble, f"a thread died: {trouble[0].exc_value!r}"


def check_hello(data: bytes) -> None:
    """The first message of an authenticated peer admits it if it is a Hello; else its connection is closed."""
    ours, theirs = socket.socketpair()
    admitted: list[Any] = []
    door = object.__new__(Door)
    door._admit = lambda hello, connection: admitted.append(hello)
    with theirs:
        theirs.sendall(_frames(data))
        theirs.shutdown(socket.SHUT_WR)
        connection = mpc.Connection(ours.detach())
        try:
            door._greet(connection)
        finally:
            closed = connection.closed
            if not closed:
                connection.close()
    assert all(isinstance(hello, Hello) for hello in admitted), f"{admitted} was admitted"
    assert closed or admitted, "a peer without a Hello keeps its connection"


_MESSAGES = [
    pickle.dumps(message, protocol=5)
    for message in (("beat",), ("event", {"a": 1}), ("result", b"x" * 50), Hello(0, "a", "b", "127.0.0.1", 1, 2.0, 1))
]


def _frames(data: bytes) -> bytes:
    """Frames with pickles of some messages, cut or changed as the bytes say, and then the bytes themselves."""
    if len(data) < 3:
        return data
    message = bytearray(_MESSAGES[data[0] % len(_MESSAGES)])
    place = data[1] % len(message)
    if data[0] & 64:
        message[place] ^= data[2]
    elif data[0] & 128:
        del message[place:]
    return struct.pack("!i", len(message)) + bytes(message) + data[3:60_000]


BYTES = st.one_of(
    st.binary(max_size=80),
    st.tuples(st.sampled_from(SHARDS), EDITS).map(lambda pair: b"\x00" + damaged(pair[0][8:300], pair[1])),
    st.tuples(st.integers(0, 255), st.binary(min_size=3, max_size=20)).map(lambda pair: bytes([pair[0]]) + pair[1]),
)
FORMATS = {
    "packing": check_packing,
    "handshake": check_handshake,
    "messages": check_messages,
    "hello": check_hello,
}

__all__ = ["BYTES", "FORMATS"]
