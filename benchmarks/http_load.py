"""Sends one HTTP request over and over on some connections, and prints the rate and the median latency as JSON.

It runs in a process of its own and costs little per request, so that the server is the limit. Every reply has to have
the status 200.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """What one measurement gave."""

    rate: float
    """Requests per second."""
    p50: float
    """The median time of a request in milliseconds."""


class _Connection:
    """Sends the request again as soon as its reply is complete."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.socket = socket.create_connection(address, 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._data = b""
        self._needed = 0
        self._started = 0.0

    def send(self) -> None:
        self._data, self._needed = b"", 0
        self._started = time.perf_counter()
        self.socket.sendall(self._request)

    def receive(self) -> float | None:
        """Read what is there; return the seconds of the request if its reply is complete."""
        part = self.socket.recv(262_144)
        if not part:
            raise ConnectionError("the server closed the connection")
        self._data += part
        if not self._needed and (end := self._data.find(b"\r\n\r\n")) >= 0:
            if not self._data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the server answered {self._data[:300]!r}")
            length = _LENGTH.search(self._data, 0, end)
            self._needed = end + 4 + int(length[1]) if length else -1
        if self._needed == -1:  # chunked
            complete = self._data.endswith(b"0\r\n\r\n")
        else:
            complete = 0 < self._needed <= len(self._data)
        return time.perf_counter() - self._started if complete else None


def run(address: tuple[str, int], request: bytes, clients: int, seconds: float) -> Load:
    """Send the request on `clients` connections for some seconds."""
    selector = selectors.DefaultSelector()
    connections = [_Connection(address, request) for _ in range(clients)]
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send()
    times: list[float] = []
    started = time.perf_counter()
    end = started + seconds
    while (now := time.perf_counter()) < end:
        for key, _ in selector.select(30):
            spent = key.data.receive()
            if spent is not None:
                times.append(spent)
                key.data.send()
    for connection in connections:
        connection.socket.close()
    return Load(len(times) / (now - started), 1000 * statistics.median(times))


def request_bytes(url: str, method: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return a request as it is sent."""
    parts = urlsplit(url)
    lines = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def measure(url: str, method: str, body: bytes, headers: dict[str, str], clients: int, seconds: float) -> Load:
    """Run the load in a process of its own."""
    parts = urlsplit(url)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(request_bytes(url, method, body, headers))
        command = [
            sys.executable,
            __file__,
            str(parts.hostname),
            str(parts.port),
            file.name,
            str(clients),
            str(seconds),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return Load(**json.loads(done.stdout))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("file", help="the request, as it is sent")
    parser.add_argument("clients", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    result = run((options.host, options.port), Path(options.file).read_bytes(), options.clients, options.seconds)
    print(json.dumps({"rate": result.rate, "p50": result.p50}))
