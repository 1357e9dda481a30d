"""Benchmarks Orca's server against MLflow's scoring server, a plain Ray Serve deployment and a bare route.

1   linear 64-10, JSON, 1 client: p50, against MLflow                        at most 0.6
2   linear 64-10, JSON, 16 clients: requests/s, against MLflow               at least 2
3   linear 64-10, JSON, 16 clients: requests/s, against Ray Serve            at least 5
4   the seed's body with a 192 x 192 x 3 image, 1 client: against MLflow     at least 10
5   the same image as binary v2, 1 client: against our JSON                  at least 3
6   MLP 784-1024-1024-10, binary, 16 clients: joined, against not joined     at least 2
6p  the same with 1 client: p50                                              at most 1.05
7   token, checks, limits and metrics: p50, against a bare Starlette route   at most 1.1
8   memory of a server with one small model                                  below 200 MB

All sides run the same IR in one process with one inference thread. The sides of a section run in turns, every other
turn in reverse order; results are medians over the turns, and the median of the ratios within a turn. One row per
request: rows/s are requests/s. Ray runs only during section 3. serving_peers.py contains the other sides, http_load.py
the client.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))

import serving_peers as peers  # noqa: E402
from comparing import Comparison, Part, Side, chosen, facts, measure, take_turns  # noqa: E402
from http_load import Load  # noqa: E402
from http_load import measure as load  # noqa: E402

from orca.store import Store  # noqa: E402
from tests.serving import models  # noqa: E402
from tests.serving.servers import Server, binary  # noqa: E402

SECTIONS = ("1", "2", "3", "4", "5", "6", "6p", "7", "8")
JSON = {"Content-Type": "application/json"}
MOST_BYTES = 200 * 2**20
Request = tuple[str, str, bytes, dict[str, str]]
"""URL, verb, body and headers."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[str]:
    """Run a peer's server within a context, from the time on that it accepts connections."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 180
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command[:4])} did not start")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def orca(store: Store, *options: str) -> Iterator[Server]:
    server = Server(store.path, *options)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def mlflow(store: Store, name: str, folder: str) -> Iterator[str]:
    version = store.models.resolve(name)
    place = f"{folder}/mlflow-{name}"
    peers.save_for_mlflow(str(store.models.ir_path(version)), place, version.signature.inputs[0].shape)
    port = free_port()
    command, environment = peers.mlflow_command(place, port)
    with running(command, port, environment) as url:
        yield url


@contextlib.contextmanager
def peer(kind: str, store: Store, name: str) -> Iterator[str]:
    port = free_port()
    ir = str(store.models.ir_path(store.models.resolve(name)))
    with running([sys.executable, str(HERE / "serving_peers.py"), kind, ir, str(port)], port) as url:
        yield url


# Requests

X = np.random.default_rng(0).standard_normal((1, 64)).astype("f4")
IMAGE = np.random.default_rng(0).integers(0, 256, (192, 192, 3))
DIGIT = np.random.default_rng(0).standard_normal((1, 784)).astype("f4")


def v2_json(url: str) -> Request:
    tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": X.ravel().tolist()}
    return f"{url}/v2/models/linear/infer", "POST", json.dumps({"inputs": [tensor]}).encode(), JSON


def invocations(url: str, x: Any) -> Request:
    return f"{url}/invocations", "POST", json.dumps({"inputs": x.tolist()}).encode(), JSON


def seed_body(url: str) -> Request:
    body = {"columns": ["x"], "data": [{"x": IMAGE.flatten().tolist()}], "shape": [192, 192, 3]}
    return f"{url}/api/v1/model/image/predict", "PUT", json.dumps(body).encode(), JSON


def v2_binary(url: str, model: str, x: np.ndarray[Any, Any]) -> Request:
    raw = x.astype("f4").tobytes()
    body, headers = binary([("x", x.shape, "FP32", raw)], parameters={"binary_data_output": True})
    return f"{url}/v2/models/{model}/infer", "POST", body, headers


class Bench:
    """The store with the models, and how long to measure."""

    def __init__(self, folder: str, seconds: float, turns: int) -> None:
        self.folder, self.seconds, self.turns = folder, seconds, turns
        self.store = Store(f"{folder}/store")
        for name, model in (("linear", models.linear(1)), ("image", models.image()), ("mlp", models.mlp())):
            self.store.models.put(model, name)

    def _load(self, request: Request, clients: int) -> Load:
        return load(*request, clients, self.seconds)

    def rate(self, request: Request, clients: int) -> Side:
        self._load(request, clients)  # warm
        return lambda: self._load(request, clients).rate

    def p50(self, request: Request, clients: int = 1) -> Side:
        self._load(request, clients)
        return lambda: self._load(request, clients).p50

    def compare(self, section: str, title: str, sides: dict[str, Side], bar: float, unit: str) -> list[str]:
        ours, other = sides
        return Comparison(section, title, ours, other, bar, unit).lines(take_turns(sides, self.turns, unit))

    # Sections

    def against_mlflow(self, sections: set[str]) -> list[str]:
        lines: list[str] = []
        with orca(self.store, "--model", "linear") as server, mlflow(self.store, "linear", self.folder) as url:
            ours, other = v2_json(server.url), invocations(url, X)
            if "1" in sections:
                sides = {"Orca": self.p50(ours), "MLflow": self.p50(other)}
                lines += self.compare("1", "linear, 1 client, p50", sides, 0.6, "ms")
            if "2" in sections:
                sides = {"Orca": self.rate(ours, 16), "MLflow": self.rate(other, 16)}
                lines += self.compare("2", "linear, 16 clients", sides, 2.0, "rows/s")
        return lines

    def against_ray(self) -> list[str]:
        with orca(self.store, "--model", "linear") as server, peer("ray", self.store, "linear") as url:
            sides = {"Orca": self.rate(v2_json(server.url), 16), "Ray Serve": self.rate(v2_json(url), 16)}
            return self.compare("3", "linear, 16 clients", sides, 5.0, "rows/s")

    def images(self, sections: set[str]) -> list[str]:
        lines: list[str] = []
        with orca(self.store, "--model", "image") as server:
            ours = seed_body(server.url)
            if "4" in sections:
                with mlflow(self.store, "image", self.folder) as url:
                    other = invocations(url, IMAGE[None].astype("f4"))
                    sides = {"Orca, seed's body": self.rate(ours, 1), "MLflow": self.rate(other, 1)}
                    lines += self.compare("4", "image, 1 client", sides, 10.0, "rows/s")
            if "5" in sections:
                raw = v2_binary(server.url, "image", IMAGE[None])
                sides = {"Orca, binary": self.rate(raw, 1), "Orca, JSON": self.rate(ours, 1)}
                lines += self.compare("5", "image, binary, 1 client", sides, 3.0, "rows/s")
        return lines

    def joining(self, sections: set[str]) -> list[str]:
        lines: list[str] = []
        with orca(self.store, "--model", "mlp") as joined, orca(self.store, "--model", "mlp", "--join", "1") as single:
            requests = [v2_binary(server.url, "mlp", DIGIT) for server in (joined, single)]
            names = ("Orca, joined", "Orca, not joined")
            if "6" in sections:
                sides = {name: self.rate(request, 16) for name, request in zip(names, requests, strict=True)}
                lines += self.compare("6", "MLP, 16 clients", sides, 2.0, "rows/s")
            if "6p" in sections:
                sides = {name: self.p50(request) for name, request in zip(names, requests, strict=True)}
                lines += self.compare("6p", "MLP, 1 client, p50", sides, 1.05, "ms")
        return lines

    def checks(self) -> list[str]:
        token = self.store.tokens.add("benchmark")
        with orca(self.store, "--model", "linear", "--auth") as server, peer("bare", self.store, "linear") as url:
            request = v2_json(server.url)
            secured = (*request[:3], {**request[3], "Authorization": f"Bearer {token}"})
            sides = {"Orca, token": self.p50(secured), "bare route": self.p50(v2_json(url))}
            return self.compare("7", "all checks, 1 client, p50", sides, 1.1, "ms")

    def memory(self) -> list[str]:
        with orca(self.store, "--model", "linear") as server:
            self._load(v2_json(server.url), 16)
            used = server.rss
        verdict = "met" if used < MOST_BYTES else "MISSED"
        return [f"8   memory of a server, one small model            {used / 2**20:>7.0f} MB  bar < 200 MB  {verdict} "]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options = parser.parse_args()
    sections = chosen(options.only, SECTIONS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(folder, options.seconds, options.turns)
        parts: list[Part] = [
            ({"1", "2"}, partial(bench.against_mlflow, sections)),
            ({"3"}, bench.against_ray),
            ({"4", "5"}, partial(bench.images, sections)),
            ({"6", "6p"}, partial(bench.joining, sections)),
            ({"7"}, bench.checks),
            ({"8"}, bench.memory),
        ]
        packages = ("openvino", "uvicorn", "orjson", "mlflow-skinny", "ray", "starlette")
        measure(parts, sections, [facts(packages, "one inference thread per side")])


if __name__ == "__main__":
    main()
