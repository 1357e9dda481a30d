"""One server process: the application on uvicorn, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
import uvloop

from orca.serving.application import Application, create_application
from orca.serving.connection import LimitedConnection, swept
from orca.serving.settings import Settings
from orca.serving.sockets import BACKLOG

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
KEEP_ALIVE_SECONDS = 75
log = logging.getLogger("orca.serving")


class _Server(uvicorn.Server):
    """A server that ends with a normal exit code after a signal, and says when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server after its running requests."""
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)

    def end(self) -> None:
        """End after the running requests."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report it."""
        await super().startup(sockets)
        self._on_start()


def run(
    settings: Settings, listener: socket.socket, started: Callable[[], None], supervisor: int | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or the end of the supervisor; running requests are finished.

    Args:
        settings: What to serve.
        listener: The listening socket.
        started: Called when requests are answered.
        supervisor: A pipe that the supervisor holds open.

    Raises:
        OrcaError: The store or a model cannot be served.
    """
    application = create_application(settings)
    config = uvicorn.Config(
        application,
        http=LimitedConnection,
        ws="none",
        loop="uvloop",
        lifespan="off",  # `_serve` does it, so that errors arrive as they are
        log_config=None,
        access_log=settings.access_log,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.timeout) + 1,
        backlog=BACKLOG,
    )
    ended = uvloop.run(_serve(_Server(config, started), application, listener, supervisor))
    if not ended:
        log.warning("A computation has not ended; the process ends without it.")
        sys.stdout.flush()
        os._exit(0)


async def _serve(server: _Server, application: Application, listener: socket.socket, supervisor: int | None) -> bool:
    if supervisor is not None:
        asyncio.get_running_loop().add_reader(supervisor, _end_alone, server, supervisor)
    await application.start()
    try:
        with swept(server.server_state.connections, application.settings.timeout):
            await server.serve(sockets=[listener])
    except BaseException:
        await application.stop()
        raise
    return await application.stop()


def _end_alone(server: _Server, supervisor: int) -> None:
    asyncio.get_running_loop().remove_reader(supervisor)
    server.end()
