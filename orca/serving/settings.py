"""What a server is started with: the store, the models, the address, and the limits."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

from orca.core.arguments import (
    check_count,
    check_fields,
    check_flag,
    check_number,
    check_path,
    check_text,
    named,
    optional,
    wrong,
)
from orca.errors import ArgumentError

_SIZE = re.compile(r"(\d+)([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
PACKAGES = ("httptools", "openvino", "orjson", "prometheus_client", "sqlalchemy", "uvicorn", "uvloop")
"""What a server imports."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def parse_bytes(name: str, value: Any) -> int:
    """Return a size in bytes, written as a number or as a text such as "16m".

    >>> parse_bytes("--max-body", "16m")
    16777216
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or len(match[1]) > 12 or int(match[1]) == 0:
        raise wrong(name, value, 'a size such as "16m"')
    return int(match[1]) * _UNITS[match[2].lower()]


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, False, True)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise wrong(name, value, "a list of names")
    return tuple(check_text(name, text) for text in texts)


@dataclass(frozen=True)
class Settings:
    """The settings of a server.

    Args:
        store: Folder or fsspec URL of the store.
        db: SQLAlchemy URL of the store's database, if it is not in the folder.
        models: References such as ``name`` or ``name@alias``; empty for all models of the store.
        host: Address to bind to. Any address but a loopback one requires tokens.
        port: Port to bind to; 0 for any free one.
        workers: Server processes.
        threads: Inference threads of each process.
        max_body: Largest accepted body in bytes, or a text such as "16m".
        timeout: Seconds until a request is answered with 504, and until its body must have arrived.
        queue: Requests of one model that may wait in each process.
        join: Most rows of waiting requests that are computed at once; 1 computes each request separately.
        auth: Whether requests need a token; the default is to require one unless the address is a loopback one.
        hosts: Further names that clients may use for this server in the ``Host`` header.
        poll: Seconds between two looks at the store for new versions, moved aliases and removed tokens.
        versions: Versions besides the served ones that each process keeps loaded per model.
        max_pixels: Largest accepted image.
        allow_virtual: Virtual datasets, which are programs, that ``?datax=`` may run.
        tasks: Folder for the results of asynchronous requests; shared by all processes that serve an address.
        access_log: Whether to log each request.
    """

    store: str
    db: str | None = None
    models: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 1
    max_body: int = 2**24
    timeout: float = 30.0
    queue: int = 256
    join: int = 64
    auth: bool | None = None
    hosts: tuple[str, ...] = ()
    poll: float = 1.0
    versions: int = 4
    max_pixels: int = 2**24
    allow_virtual: tuple[str, ...] = ()
    tasks: str | None = None
    access_log: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            store=check_path,
            db=optional(check_text),
            models=_check_texts,
            host=check_text,
            port=lambda name, value: check_count(name, value, 0, 65535),
            workers=lambda name, value: check_count(name, value, 1, 256),
            threads=lambda name, value: check_count(name, value, 1, 1024),
            max_body=parse_bytes,
            timeout=lambda name, value: check_number(name, value, 0.001, "a number of seconds above 0"),
            queue=check_count,
            join=check_count,
            auth=optional(check_flag),
            hosts=_check_texts,
            poll=lambda name, value: check_number(name, value, 0.001, "a number of seconds above 0"),
            versions=lambda name, value: check_count(name, value, 0),
            max_pixels=check_count,
            allow_virtual=_check_texts,
            tasks=optional(named("tasks", check_path)),
            access_log=check_flag,
        )
        if self.auth is False and not is_loopback(self.host):
            raise ArgumentError(
                f"host={self.host!r} is reachable from other machines, so requests need tokens: leave out auth=False "
                "(--no-auth), or bind to 127.0.0.1."
            )

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token."""
        return not is_loopback(self.host) if self.auth is None else self.auth
