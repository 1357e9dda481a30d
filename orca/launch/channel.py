"""The authenticated channel between the driver and its ranks: framed messages, one reader, one writer."""

from __future__ import annotations

import multiprocessing.connection as mpc
import os
import pickle
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle

from orca.launch.base import Hello, Meeting

GOODBYE = object()
"""Passed to `receive` when the other side has closed the connection or died."""

_AUTH_SECONDS = 20.0


def _send_at_once(sock: socket.socket) -> None:
    # Small messages must not wait for an acknowledgement of the one before (40 ms a call).
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _cut(connection: mpc.Connection) -> None:
    """Wake whoever is blocked on the connection; closing it would not."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


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
            except (EOFError, OSError, TypeError, ValueError):
                break
            self.received_bytes += len(blob)
            self._receive(pickle.loads(blob))
        if not self._closed.is_set():
            self._receive(GOODBYE)


class Listening:
    """A socket bound to port 0 and held, so that no other process takes the port; only peers with the key get in."""

    def __init__(self, host: str, serve: Callable[[mpc.Connection], None]) -> None:
        self._serve = serve
        self._listener = mpc.Listener((host, 0), family="AF_INET", backlog=128)
        self.meeting = Meeting(str(self._listener.address[0]), int(self._listener.address[1]), secrets.token_bytes(32))
        self._open = True
        self._thread = threading.Thread(target=self._accept, name="orca-listening", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            # close() does not wake a blocked accept(): connect once.
            socket.create_connection((self.meeting.host, self.meeting.port), timeout=1).close()
        except OSError:
            pass
        self._thread.join(2)
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            try:
                connection = self._listener.accept()
            except OSError:
                continue
            if not self._open:
                connection.close()
                return
            # A silent unauthenticated peer ties up only its own thread.
            threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: mpc.Connection) -> None:
        timer = threading.Timer(_AUTH_SECONDS, _cut, args=(connection,))
        timer.daemon = True
        timer.start()
        try:
            mpc.deliver_challenge(connection, self.meeting.key)
            mpc.answer_challenge(connection, self.meeting.key)
            with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                _send_at_once(duplicate)
        except Exception:
            connection.close()
            return
        finally:
            timer.cancel()
        self._serve(connection)


class Door(Listening):
    """Where ranks join the driver: each sends its Hello first and is then admitted."""

    def __init__(self, host: str, admit: Callable[[Hello, mpc.Connection], None]) -> None:
        self._admit = admit
        super().__init__(host, self._greet)

    def _greet(self, connection: mpc.Connection) -> None:
        try:
            hello = pickle.loads(connection.recv_bytes())
        except (OSError, EOFError):
            connection.close()
            return
        self._admit(hello, connection)


def knock(meeting: Meeting) -> tuple[mpc.Connection, str]:
    """Connect to a listening socket and authenticate with the key; return the connection and our own address on it."""
    with socket.socket() as sock:
        sock.settimeout(_AUTH_SECONDS)
        sock.connect((meeting.host, meeting.port))
        sock.settimeout(None)
        _send_at_once(sock)
        address = str(sock.getsockname()[0])
        connection = mpc.Connection(sock.detach())
    mpc.answer_challenge(connection, meeting.key)
    mpc.deliver_challenge(connection, meeting.key)
    return connection, address


def connect(meeting: Meeting, hello: Callable[[str], Hello]) -> mpc.Connection:
    """Connect a rank to its driver; `hello` is called with our address as the driver sees it."""
    connection, address = knock(meeting)
    connection.send_bytes(pack(hello(address)))
    return connection
