"""The listening socket of a server."""

from __future__ import annotations

import socket

from orca.errors import ArgumentError

BACKLOG = 2048


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; it is opened before anything slow, so that a taken port is reported at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except socket.gaierror:
        raise ArgumentError(f"--host {host}: this name has no address.") from None
    except OSError as error:
        raise ArgumentError(f"The server cannot listen on {host}:{port}: {error.strerror}.") from None
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
