"""HTTP requests and replies as the routes see them, independent of the server that delivers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import orjson

if TYPE_CHECKING:
    from orca.serving.application import Application
    from orca.store.tokens import Token

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
BINARY = b"application/octet-stream"


class HttpError(Exception):
    """A request that is answered with an error status and a sentence."""

    def __init__(self, status: int, text: str, headers: Iterable[Header] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = list(headers)


class Disconnected(Exception):
    """The client closed the connection before its request was complete."""


class Reply:
    """The answer to a request."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, body: bytes, kind: bytes = JSON, status: int = 200, headers: Iterable[Header] | None = None
    ) -> None:
        self.status = status
        self.body = body
        self.headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        if headers is not None:
            self.headers += headers

    async def send(self, send: Send) -> None:
        """Send the reply to the client."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


def dumps(value: Any) -> bytes:
    """Return a value as JSON; arrays become lists, NaN and infinity become null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def json_reply(value: Any, status: int = 200, headers: Iterable[Header] | None = None) -> Reply:
    """Return a reply with a JSON body."""
    return Reply(dumps(value), JSON, status, headers)


def parse_json(body: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object of a body."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # The position only: the decoder's own text would never repeat the body, but its length is not limited.
        raise HttpError(400, f"The body is not JSON: {str(error)[:200]}.") from None
    if type(value) is not dict:
        raise HttpError(400, f"The body is a JSON {_KINDS.get(type(value), 'value')}; it has to be an object.")
    return value


_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


class Request:
    """A request: its headers, the parameters of its route, and its body."""

    __slots__ = ("_query", "_receive", "app", "headers", "model", "parameters", "scope", "token")

    def __init__(self, scope: Scope, receive: Receive, app: Application) -> None:
        self.scope = scope
        self.app = app
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.parameters: Mapping[str, str] = {}
        self.token: Token | None = None
        self.model = ""
        """The name of the model that answered, for the metrics."""
        self._receive = receive
        self._query: dict[str, str] | None = None

    @property
    def path(self) -> str:
        """The decoded path."""
        return str(self.scope["path"])

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query; the last one wins."""
        if self._query is None:
            text = bytes(self.scope.get("query_string", b"")).decode("latin-1")
            try:
                self._query = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
            except ValueError:
                raise HttpError(400, "The query has more than 100 parameters.") from None
        return self._query

    def check_type(self, *accepted: bytes) -> None:
        """Refuse a body of another type, and a compressed one."""
        kind = self.headers.get(b"content-type")
        if kind is not None and kind.partition(b";")[0].strip().lower() not in accepted:
            names = " or ".join(name.decode() for name in accepted)
            raise HttpError(415, f"The server takes bodies of the type {names}.")
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise HttpError(415, "The server takes no compressed bodies: leave out Content-Encoding.")

    async def body(self) -> bytes:
        """Read the body within the limit of size; that of time belongs to the connection."""
        limit = self.app.settings.max_body
        length = self.headers.get(b"content-length")
        if length is not None and int(length) > limit:
            raise _too_large(limit)
        return await self._read(limit)

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part = message.get("body", b"")
            if not parts and not message.get("more_body", False):
                if len(part) > limit:
                    raise _too_large(limit)
                return bytes(part)
            parts.append(part)
            total += len(part)
            if total > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                return b"".join(parts)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"The body is larger than {limit:,} bytes, the limit of this server (--max-body).")
