"""Connections with limits: on headers, on clients that send or read slowly, and on their number.

A sweep looks at all connections every half a second, so that a request that arrives at once costs nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 2**16
HEADER_SECONDS = 10.0
"""Seconds until the headers of a request must be complete, or less with a shorter --timeout."""
STALLED_SECONDS = 30.0
"""Seconds that a client may leave a reply unread, or continue to send a body that was refused."""
MOST_CONNECTIONS = 2000
_SWEEP_SECONDS = 0.5

_HEADERS, _BODY, _LEFTOVER = "headers", "body", "leftover"


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits that it does not have."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0
        self._waits_for: tuple[str, int] | None = None
        self._since = 0.0
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of incomplete headers."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is before and (before is None or (before.response_complete and not before.more_body)):
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The headers are larger than {HEADER_BYTES} bytes.")
        else:
            self._header_bytes = 0

    def on_message_complete(self) -> None:
        """Note the end of a body, also of one that was refused before it was complete."""
        super().on_message_complete()
        if self.cycle is not None:
            self.cycle.more_body = False

    def pause_writing(self) -> None:
        """Limit the time that a client may take to read."""
        super().pause_writing()
        self._stop_timer()
        self._write_timer = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop_timer()
        super().resume_writing()

    def _stop_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # The sweep

    def check(self, now: float, timeout: float) -> None:
        """End the connection if the client has taken too long to send what it began."""
        state = self._state()
        if state is None or state != self._waits_for:
            self._waits_for, self._since = state, now
            return
        limits = {_HEADERS: min(timeout, HEADER_SECONDS), _BODY: timeout, _LEFTOVER: STALLED_SECONDS}
        if now - self._since <= limits[state[0]]:
            return
        if state[0] == _BODY:
            self._send_408(timeout)
        else:
            self.transport.abort()

    def _state(self) -> tuple[str, int] | None:
        """Return what the connection waits for, and for which request; None if it is not the client's turn."""
        cycle = self.cycle
        if cycle is None or (cycle.response_complete and not cycle.more_body):
            # The timer of an idle connection is uvicorn's own; it ends with the first byte of the next request.
            return (_HEADERS, id(cycle)) if self.timeout_keep_alive_task is None else None
        if not cycle.more_body:
            return None
        return (_LEFTOVER if cycle.response_complete else _BODY), id(cycle)

    def _send_408(self, timeout: float) -> None:
        key = "message" if self.cycle.scope["path"].startswith("/api/") else "error"
        body = orjson.dumps({key: f"The body did not arrive within {timeout:g} s (--timeout)."})
        head = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()


@contextlib.contextmanager
def swept(connections: set[Any], timeout: float) -> Iterator[None]:
    """Check connections every half a second within a context."""
    task = asyncio.ensure_future(_sweep(connections, timeout))
    try:
        yield
    finally:
        task.cancel()


async def _sweep(connections: set[Any], timeout: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(_SWEEP_SECONDS, timeout / 4))
        for connection in list(connections):
            if not connection.transport.is_closing():
                connection.check(loop.time(), timeout)
