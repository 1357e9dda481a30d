"""One thread for all connections of a process: it reads what arrives, and writes what a peer could not take at once."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable

_CHUNK = 256 << 10


class Hub:
    """Watches sockets in a thread of its own and calls back when they are ready. Callbacks must not block."""

    def __init__(self) -> None:
        self.scratch = bytearray(_CHUNK)
        """Where callbacks may receive bytes, as only one of them runs at a time."""
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._jobs: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="orca-hub", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the hub's own thread."""
        return threading.current_thread() is self._thread

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job in the hub's thread soon; only there may sockets be watched or released."""
        self._jobs.append(job)
        # A full buffer means that the thread is about to wake up anyway.
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")

    def watch(self, sock: socket.socket, writable: bool, ready: Callable[[bool, bool], None]) -> None:
        """Call `ready` with what a socket is ready for, reading and writing. Only in the hub's thread."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        try:
            self._selector.modify(sock, events, ready)
        except KeyError:
            self._selector.register(sock, events, ready)

    def release(self, sock: socket.socket) -> None:
        """Stop watching a socket, before it is closed. Only in the hub's thread."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def close(self, seconds: float = 2.0) -> None:
        """End the thread; sockets have to be released before."""
        self._closing = True
        self.submit(lambda: None)
        if not self.is_current:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing:
            for key, events in self._selector.select():
                if key.data is None:
                    with contextlib.suppress(OSError):
                        self._wake_read.recv(4096)
                else:
                    key.data(bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE))
            self._run_jobs()
        self._run_jobs()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def _run_jobs(self) -> None:
        while self._jobs:
            self._jobs.popleft()()


__all__ = ["Hub"]
