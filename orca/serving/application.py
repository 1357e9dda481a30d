"""The ASGI application: finds the route of a request, checks who asks, and turns every failure into a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from orca.errors import ArgumentError, MissingPackageError
from orca.serving import pages
from orca.serving.access import Access, may_see
from orca.serving.catalog import Catalog, Served
from orca.serving.messages import Disconnected, HttpError, Receive, Reply, Request, Scope, Send, json_reply
from orca.serving.metrics import count
from orca.serving.protocols import inference_v2, omega, server, tf_serving
from orca.serving.routing import Router
from orca.serving.settings import Settings
from orca.serving.tasks import Tasks
from orca.store import Store

log = logging.getLogger("orca.serving")
T = TypeVar("T")


def create_application(settings: Settings) -> Application:
    """Return the ASGI application of a server.

    Args:
        settings: What to serve and within which limits. The address and the number of processes belong to the server
            that runs the application.
    """
    return Application(settings)


class Application:
    """Answers HTTP requests for the models of a store; models are loaded when the server starts it (lifespan)."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._needs_token = settings.needs_token
        self.router = Router((*inference_v2.ROUTES, *omega.ROUTES, *tf_serving.ROUTES, *server.ROUTES, *pages.ROUTES))
        self.store: Store
        self.catalog: Catalog
        self.tasks: Tasks
        self._access: Access
        self._decoding = ThreadPoolExecutor(1, "decoding")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer_http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    # Requests

    async def _answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request = Request(scope, receive, self)
        protocol = "none"
        try:
            self._access.check_host(request)
            route, request.parameters = self.router.find(scope["path"])
            protocol = route.protocol
            answer = route.answers.get(scope["method"]) or self.router.answer(route, scope["method"])
            if self._needs_token and not route.is_open:
                request.token = await self._access.check_token(request, request.parameters.get("model"))
            reply = await answer(request)
        except HttpError as error:
            reply = failure(request, error.status, error.text, error.headers)
        except Disconnected:
            return
        except Exception:
            number = uuid.uuid4().hex[:12]
            log.exception("Request %s failed", number)
            reply = failure(request, 500, f"The model failed; the log of the server says why under the id {number}.")
        if scope["method"] == "HEAD":
            reply.body = b""
        count(request.model, protocol, reply.status, started)
        await reply.send(send)

    async def served(self, request: Request) -> Served:
        """Return the model that the path of a request names."""
        parameters = request.parameters
        name = parameters["model"]
        reference = parameters.get("version") or parameters.get("label")
        if reference is not None:
            name = f"{name}@{reference}"
        served = self.catalog.ready.get(name)
        if served is None:
            served = await self.catalog.find(name, lambda model: may_see(request.token, model))
        request.model = served.version.name
        return served

    async def decode(self, work: Callable[..., T], *arguments: Any) -> T:
        """Decode images on a thread of their own: large ones take long, and only one at a time needs memory."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, work, *arguments)

    # The life of a process

    async def start(self) -> None:
        """Open the store and load the models."""
        settings = self.settings
        self.store = Store(settings.store, settings.db, create=False)
        if settings.needs_token and not self.store.tokens.list():
            raise ArgumentError(
                f"host={settings.host!r}: requests need a token, and the store has none. Add one: "
                "orca token add <store> <label>."
            )
        self._access = Access(self.store, settings)
        self.tasks = Tasks(settings.tasks, settings.timeout)
        self.catalog = Catalog(self.store, settings)
        await self.catalog.start()
        self.catalog.on_change(self._access.forget)

    async def stop(self) -> bool:
        """Finish what runs, and release everything; return whether all computations have ended."""
        await self.tasks.stop()
        ended = await self.catalog.stop()
        self._decoding.shutdown(wait=False)
        self.store.close()
        return ended

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            if not isinstance(error, ArgumentError | MissingPackageError):
                log.debug("The server did not start", exc_info=True)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        with contextlib.suppress(Exception):
            await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def failure(request: Request, status: int, text: str, headers: Any = ()) -> Reply:
    """Return an error in the form of the protocol."""
    key = "message" if request.path.startswith("/api/") else "error"
    return json_reply({key: text}, status, headers)
