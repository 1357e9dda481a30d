"""Starts real servers for tests, and talks to them over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


class Server:
    """A running `orca serve`."""

    def __init__(self, store: str | Path, *options: str, log: Path | None = None) -> None:
        command = [sys.executable, "-m", "orca.cli", "serve", str(store), "--port", "0", *options]
        self._log = log
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
        )
        self.lines: list[str] = []
        self._found = threading.Event()
        self.url = ""
        threading.Thread(target=self._read, daemon=True).start()
        if not self._found.wait(START_SECONDS) or not self.url:
            self.process.kill()
            raise RuntimeError("The server did not start:\n" + "".join(self.lines))
        self.port = int(self.url.rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(r" on (http://\S+) ", line):
                self.url = match[1]
                self._found.set()
        self._found.set()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def rss(self) -> int:
        """Resident memory in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert match is not None
        return int(match[1]) * 1024

    def client(self, timeout: float = 30) -> Client:
        return Client(self.port, timeout)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        with contextlib.closing(self.client()) as client:
            return client.ask(method, path, body, headers)

    def stop(self, seconds: float = 40) -> int:
        """End the server with SIGTERM and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def serving(store: str | Path, *options: str) -> Iterator[Server]:
    """Run a server within a context."""
    server = Server(store, *options)
    try:
        yield server
    finally:
        server.stop()


class Answer:
    """A reply: its status, headers and body."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The sentence of an error."""
        return str(self.json.get("error") or self.json.get("message"))


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int, timeout: float = 30) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        self._connection.request(method, path, body, sent)
        reply = self._connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())

    def close(self) -> None:
        self._connection.close()


def tensor(name: str, array: np.ndarray[Any, Any], datatype: str = "FP32") -> dict[str, Any]:
    """Return a tensor of a v2 request."""
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.tolist()}


def binary(inputs: Sequence[tuple[str, Sequence[int], str, bytes]], **head: Any) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a v2 request with raw tensors."""
    entries = [
        {"name": name, "shape": list(shape), "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}
        for name, shape, datatype, raw in inputs
    ]
    text = json.dumps({"inputs": entries, **head}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    return text + b"".join(raw for *_, raw in inputs), headers


def elements(*values: bytes) -> bytes:
    """Return a BYTES tensor."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def raw_outputs(answer: Answer) -> list[np.ndarray[Any, Any]]:
    """Return the float32 tensors of a binary reply."""
    length = int(answer.headers["inference-header-content-length"])
    head = json.loads(answer.body[:length])
    arrays, position = [], length
    for output in head["outputs"]:
        size = output["parameters"]["binary_data_size"]
        arrays.append(np.frombuffer(answer.body[position : position + size], "<f4").reshape(output["shape"]))
        position += size
    assert position == len(answer.body)
    return arrays


def in_threads(count: int, work: Callable[[int], Any], seconds: float = 90) -> list[Any]:
    """Run work(0) … work(count - 1) at the same time; raise the first exception."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"not done after {seconds} s"
    if errors:
        raise errors[0]
    return results


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until a condition holds; return how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - started
