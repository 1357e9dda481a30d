"""Horovod's rendezvous server, on one address of the host and only until all ranks have found each other."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Sequence
from typing import Any

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

_NOT_VERBOSE = 0


class Rendezvous(RendezvousHTTPServer):  # type: ignore[misc]
    """Serves the addresses that Horovod's ranks exchange when they start.

    Horovod's own `RendezvousServer` listens on all addresses of the host, for as long as the process lives.
    """

    daemon_threads = True  # a silent connection must not delay `close`

    def __init__(self, address: str, hosts: Sequence[tuple[str, int]]) -> None:
        super().__init__((address, 0), RendezvousHandler, _NOT_VERBOSE)
        text = ",".join(f"{host}:{ranks}" for host, ranks in hosts)
        self.init(get_host_assignments(parse_hosts(text), sum(ranks for _, ranks in hosts)))
        self._thread = threading.Thread(target=self.serve_forever, name="orca-rendezvous", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        # An HTTPServer would look up the host's name, which takes seconds where no name server answers.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore requests that are not Horovod's."""

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
