"""The authenticated channel between the driver and its ranks: framed messages that nobody waits for."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing.connection as mpc
import os
import pickle
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import cloudpickle

from orca.launch.base import Hello, Meeting
from orca.launch.hub import Hub

GOODBYE = object()
"""Passed to `receive` when the other side has closed the connection or died."""

BEAT = pickle.dumps(("beat", 0), protocol=5)
"""A rank's heartbeat, packed."""

_LENGTH = struct.Struct("!i")
_LONG_LENGTH = struct.Struct("!Q")
_LARGEST_SHORT = 0x7FFFFFFF
_SMALL = 16 << 10
_BURST = 8 << 20
"""Bytes that one link sends before others get their turn."""
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
    """One connection. Sending never waits: what a peer cannot take at once, such as a stopped one, is written later.

    Frames are those of `multiprocessing.connection`: four bytes of length, or -1 and eight bytes, then a pickle.
    """

    def __init__(
        self,
        connection: mpc.Connection,
        receive: Callable[[Any], None],
        hub: Hub | None = None,
        *,
        unpickle: bool = True,
    ) -> None:
        """Prepare a link; `receive` is called in the thread of the hub, without `unpickle` with bytes.

        Without a hub the link has one of its own.
        """
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        connection.close()
        self._socket.setblocking(False)
        self._receive = receive
        self._unpickle = unpickle
        self._own = hub is None
        self._hub = Hub() if hub is None else hub
        self._lock = threading.Lock()
        self._outbox: deque[memoryview] = deque()
        """What could not be sent yet."""
        self._flushed = threading.Event()
        self._flushed.set()
        self._inbox = bytearray()
        self._closed = self._gone = False
        self.received_bytes = 0
        self.last_heard = time.monotonic()
        """When bytes of the peer last arrived."""

    def open(self) -> None:
        self._hub.submit(lambda: self._watch(writable=False))

    def send(self, message: Any) -> None:
        self.send_packed(pack(message))

    def send_packed(self, blob: bytes) -> None:
        size = len(blob)
        header = _LENGTH.pack(size) if size <= _LARGEST_SHORT else _LENGTH.pack(-1) + _LONG_LENGTH.pack(size)
        # One system call for a small message; a large one is not copied.
        parts = [memoryview(header + blob)] if size < _SMALL else [memoryview(header), memoryview(blob)]
        with self._lock:
            if self._closed or self._gone:
                return
            waiting = bool(self._outbox)
            self._outbox.extend(parts)
            if waiting:
                return
            self._send_some()
            if not self._outbox:
                return
            self._flushed.clear()
        self._hub.submit(lambda: self._watch(writable=True))

    def close(self, flush_seconds: float = 2.0) -> None:
        """Send what is queued (for a little while), then close both directions."""
        if self._closed:
            return
        if not self._hub.is_current:
            self._flushed.wait(flush_seconds)
        self._closed = True
        done = threading.Event()

        def work() -> None:
            self._let_go()
            done.set()

        self._hub.submit(work)
        if not self._hub.is_current:
            done.wait(flush_seconds)
        if self._own:
            self._hub.close(flush_seconds)

    def _watch(self, writable: bool) -> None:
        if not self._gone:
            self._hub.watch(self._socket, writable, self._ready)

    def _ready(self, readable: bool, writable: bool) -> None:
        if readable:
            self._read()
        if writable and not self._gone:
            with self._lock:  # to the end, as another thread may have something to send again
                self._send_some()
                if not self._outbox:
                    self._watch(writable=False)
                    self._flushed.set()

    def _send_some(self) -> None:
        """Send as much as the peer takes now, up to a limit, so that others get their turn. Needs the lock."""
        budget = _BURST
        while self._outbox and budget > 0:
            try:
                sent = self._socket.sendmsg(list(itertools.islice(self._outbox, 8)))
            except BlockingIOError:
                return
            except OSError:  # the reading side will notice
                self._outbox.clear()
                return
            budget -= sent
            while self._outbox and sent >= len(self._outbox[0]):
                sent -= len(self._outbox.popleft())
            if sent:
                self._outbox[0] = self._outbox[0][sent:]

    def _read(self) -> None:
        try:
            count = self._socket.recv_into(self._hub.scratch)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        try:
            if count == 0:
                raise EOFError
            self.last_heard = time.monotonic()
            with memoryview(self._hub.scratch) as scratch, scratch[:count] as received:
                self._inbox += received
            self._deliver()
        except Exception:
            # The other side is gone, or sends what cannot be read: neither comes to anything.
            self._let_go()
            if not self._closed:
                self._receive(GOODBYE)

    def _deliver(self) -> None:
        """Pass on all complete frames."""
        start, end = 0, len(self._inbox)
        while not self._closed and end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._inbox, start)
            body = start + _LENGTH.size
            if size == -1:
                if end - body < _LONG_LENGTH.size:
                    break
                (size,) = _LONG_LENGTH.unpack_from(self._inbox, body)
                body += _LONG_LENGTH.size
            if size < 0:
                raise ValueError(f"a frame of {size} bytes")
            if end - body < size:
                break
            with memoryview(self._inbox) as inbox, inbox[body : body + size] as frame:
                blob = bytes(frame)
            start = body + size
            self.received_bytes += size
            self._receive(pickle.loads(blob) if self._unpickle else blob)
        del self._inbox[:start]

    def _let_go(self) -> None:
        """Close the socket. Only in the hub's thread."""
        with self._lock:
            if self._gone:
                return
            self._gone = True
            self._outbox.clear()
            self._hub.release(self._socket)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._flushed.set()


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
