"""Addresses that accept connections, and those that do not."""

from __future__ import annotations

import socket

from orca.launch.reach import reachable


def test_only_an_open_port_is_reachable():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        addresses = [closed.getsockname(), server.getsockname(), ("no-such-host.invalid", 1)]
        assert reachable(addresses) == [False, True, False]
    assert reachable([]) == []
