"""Who may ask: the Host header against DNS rebinding, and tokens with their name patterns."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import math
import socket
import time
from datetime import UTC, datetime

from orca.serving.messages import HttpError, Request
from orca.serving.settings import LOOPBACK_NAMES, Settings
from orca.store import Store
from orca.store.tokens import Token

log = logging.getLogger("orca.serving")
_REMEMBERED = 1024
_CHALLENGE = [(b"www-authenticate", b'Bearer realm="orca"')]


class Access:
    """Checks the Host header and the token of a request."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        names = {*LOOPBACK_NAMES, settings.host, socket.gethostname(), *settings.hosts}
        self._hosts = {name.lower() for name in names}
        self._good_hosts: set[bytes] = set()
        self._tokens: dict[bytes, Token] = {}
        self._allowed: dict[tuple[bytes, str], tuple[Token, float]] = {}
        """Tokens by header and model, with the time until which they are valid: most requests repeat one."""

    def forget(self) -> None:
        """Ask the store for every token again: one may have been removed."""
        self._tokens.clear()
        self._allowed.clear()

    def check_host(self, request: Request) -> None:
        """Refuse a request for another host: a page of another site may have led a browser here."""
        header = request.headers.get(b"host", b"")
        if header in self._good_hosts:
            return
        if not self._is_ours(header.decode("latin-1").lower()):
            raise HttpError(421, "The server does not answer for this Host: name it with --allow-host.")
        if len(self._good_hosts) < _REMEMBERED:
            self._good_hosts.add(header)

    def _is_ours(self, header: str) -> bool:
        name = header.removeprefix("[").partition("]")[0] if header.startswith("[") else header.partition(":")[0]
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)  # an address cannot be rebound
        except ValueError:
            return False
        return True

    async def check_token(self, request: Request, model: str | None) -> Token:
        """Return the token of a request, which may use this model."""
        header = request.headers.get(b"authorization")
        if header is None:
            raise HttpError(401, "The server needs a token: send the header 'Authorization: Bearer …'.", _CHALLENGE)
        known = self._allowed.get((header, model or ""))
        if known is not None and time.time() < known[1]:
            return known[0]
        key = hashlib.sha256(header).digest()
        token = self._tokens.get(key) or await self._look_up(header, key)
        if token.expires is not None and token.expires <= datetime.now(UTC):
            raise HttpError(401, "The token has expired.", _CHALLENGE)
        if model is not None and not token.allows(model.partition("@")[0].rstrip("^")):
            raise HttpError(403, "The token may not use this model.")
        if len(self._allowed) >= _REMEMBERED:
            self._allowed.clear()
        until = math.inf if token.expires is None else token.expires.timestamp()
        self._allowed[header, model or ""] = token, until
        return token

    async def _look_up(self, header: bytes, key: bytes) -> Token:
        kind, _, text = header.decode("latin-1").partition(" ")
        secret = text.strip().rpartition(":")[2] if kind.lower() == "apikey" else text.strip()
        try:
            token = await asyncio.to_thread(self._store.tokens.find, secret)
        except Exception as error:
            log.error("A token cannot be checked: %s", type(error).__name__)
            raise HttpError(503, "The store cannot be reached.", [(b"retry-after", b"5")]) from None
        if token is None or kind.lower() not in ("bearer", "apikey"):
            raise HttpError(401, "The token is not valid.", _CHALLENGE)
        if len(self._tokens) >= _REMEMBERED:
            self._tokens.clear()
        self._tokens[key] = token
        return token


def may_see(token: Token | None, model: str) -> bool:
    """Return whether the holder of a token may know of a model."""
    return token is None or token.allows(model)
