"""The authenticated channel between the driver and its ranks: framed messages, one reader, one writer."""

from __future__ import annotations

import contextlib
import multiprocessing.connection as mpc
import os
import pickle
import queue
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import cloudpickle

from orca.launch.base import Hello, Meeting

GOODBYE = object()
"""Passed to `receive` when the other side has closed the connection or died."""

_AUTH_SECONDS = 20.0
_RETRY_SECONDS = 0.1
_MAX_STRANGERS = 64
"""Connections that may be unauthenticated at once; each takes a descriptor and two threads."""


def _send_at_once(sock: socket.socket) -> None:
    # Small messages must not wait for an acknowledgement of the one before (40 ms a call).
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _cut(connection: mpc.Connection) -> None:
    """Wake whoever is blocked on the connection; closing it would not."""
    with (
        contextlib.suppress(OSError),  # closed already
        socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)


def pack(message: Any) -> bytes:
    """Pickle a message, functions of `__main__` included."""
    return bytes(cloudpickle.dumps(message, protocol=5))


class Link:
    """One connection, written by a thread of its own so that a stopped peer can never block the caller."""

    def __init__(self, connection: mpc.Connection, receive: Callable[[Any], None]) -> None:
        self._connection = connection
        self._receive = receive
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self.received_bytes = 0
        self._writer = threading.Thread(target=self._write, name="orca-link-writer", daemon=True)
        self._reader = threading.Thread(target=self._read, name="orca-link-reader", daemon=True)

    def open(self) -> None:
        self._writer.start()
        self._reader.start()

    def send(self, message: Any) -> None:
        self.send_packed(pack(message))

    def send_packed(self, blob: bytes) -> None:
        self._outbox.put(blob)

    def close(self, flush_seconds: float = 2.0) -> None:
        """Send what is queued (for a little while), then close both directions."""
        if self._closed.is_set():
            return
        self._outbox.put(None)
        if self._writer is not threading.current_thread():
            self._writer.join(flush_seconds)
        self._closed.set()
        _cut(self._connection)
        if self._reader is not threading.current_thread():
            self._reader.join(flush_seconds)
        self._connection.close()

    def _write(self) -> None:
        while (blob := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(blob)
            except (OSError, ValueError):
                return

    def _read(self) -> None:
        while True:
            try:
                blob = self._connection.recv_bytes()
                self.received_bytes += len(blob)
                message = pickle.loads(blob)
            except Exception:
                # The other side is gone, or sends what cannot be read: neither comes to anything.
                break
            self._receive(message)
        if not self._closed.is_set():
            self._receive(GOODBYE)


class Listening:
    """A socket bound to port 0 and held, so that no other process takes the port; only peers with the key get in."""

    def __init__(self, host: str, serve: Callable[[mpc.Connection], None]) -> None:
        self._serve = serve
        self._socket = socket.create_server((host, 0), backlog=128)
        address = self._socket.getsockname()
        self.meeting = Meeting(str(address[0]), int(address[1]), secrets.token_bytes(32))
        self._strangers: deque[mpc.Connection] = deque()
        """Connections that have not authenticated yet, the oldest first."""
        self._lock = threading.Lock()
        self._open = True
        self._thread = threading.Thread(target=self._accept, name="orca-listening", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; connections that have authenticated stay."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept() on Linux; close() would not
        self._thread.join(0.1)
        if self._thread.is_alive():
            with contextlib.suppress(OSError):  # elsewhere a connection wakes it
                socket.create_connection((self.meeting.host, self.meeting.port), timeout=1).close()
            self._thread.join(2)
        self._socket.close()
        with self._lock:
            for stranger in self._strangers:
                _cut(stranger)

    def _accept(self) -> None:
        while self._open:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                if self._open:
                    time.sleep(_RETRY_SECONDS)  # out of descriptors, for example
                continue
            if not self._open:
                peer.close()
                return
            connection = mpc.Connection(peer.detach())
            with self._lock:
                self._strangers.append(connection)
                if len(self._strangers) > _MAX_STRANGERS:
                    # Somebody holds connections without authenticating. The oldest makes room; a rank tries again.
                    _cut(self._strangers.popleft())
            # A silent unauthenticated peer ties up only its own thread.
            threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: mpc.Connection) -> None:
        timer = threading.Timer(_AUTH_SECONDS, self._expire, args=(connection,))
        timer.daemon = True
        timer.start()
        try:
            mpc.deliver_challenge(connection, self.meeting.key)
            mpc.answer_challenge(connection, self.meeting.key)
            with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                _send_at_once(duplicate)
        except Exception:
            self._forget(connection)
            connection.close()
            return
        finally:
            timer.cancel()
        self._forget(connection)
        self._serve(connection)

    def _expire(self, connection: mpc.Connection) -> None:
        with self._lock:
            if connection in self._strangers:  # else its descriptor may belong to another connection by now
                _cut(connection)

    def _forget(self, connection: mpc.Connection) -> None:
        """Take a connection off the list of strangers: it has authenticated, or failed to."""
        with self._lock, contextlib.suppress(ValueError):
            self._strangers.remove(connection)


class Door(Listening):
    """Where ranks join the driver: each sends its Hello first and is then admitted."""

    def __init__(self, host: str, admit: Callable[[Hello, mpc.Connection], None]) -> None:
        self._admit = admit
        super().__init__(host, self._greet)

    def _greet(self, connection: mpc.Connection) -> None:
        try:
            hello = pickle.loads(connection.recv_bytes())
            if not isinstance(hello, Hello):
                raise TypeError(type(hello).__name__)
        except Exception:
            connection.close()
            return
        self._admit(hello, connection)


def knock(meeting: Meeting) -> tuple[mpc.Connection, str]:
    """Connect to a listening socket and authenticate with the key; return the connection and our own address on it."""
    deadline = time.monotonic() + _AUTH_SECONDS
    while True:
        try:
            return _authenticate(*_dial(meeting), meeting.key)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            # Too many strangers are connected, and we were taken for one of them.
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _dial(meeting: Meeting) -> tuple[mpc.Connection, str]:
    with socket.socket() as sock:
        sock.settimeout(_AUTH_SECONDS)
        sock.connect((meeting.host, meeting.port))
        sock.settimeout(None)
        _send_at_once(sock)
        address = str(sock.getsockname()[0])
        return mpc.Connection(sock.detach()), address


def _authenticate(connection: mpc.Connection, address: str, key: bytes) -> tuple[mpc.Connection, str]:
    try:
        mpc.answer_challenge(connection, key)
        mpc.deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    return connection, address


def connect(meeting: Meeting, hello: Callable[[str], Hello]) -> mpc.Connection:
    """Connect a rank to its driver; `hello` is called with our address as the driver sees it."""
    connection, address = knock(meeting)
    connection.send_bytes(pack(hello(address)))
    return connection
