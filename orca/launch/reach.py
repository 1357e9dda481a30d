"""Which addresses accept connections: a runtime needs long to notice that a host is gone."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

Address = tuple[str, int]
_ANSWER_SECONDS = 2.0
_PROBES = 32


def reachable(addresses: Sequence[Address]) -> list[bool]:
    """Return for each address whether something there accepts connections."""
    if not addresses:
        return []
    with ThreadPoolExecutor(min(len(addresses), _PROBES)) as pool:
        return list(pool.map(_accepts, addresses))


def _accepts(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
