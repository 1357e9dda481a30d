"""The server refuses what it should: foreign hosts, missing tokens, odd names, image bombs and slow clients."""

from __future__ import annotations

import io
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError
from orca.serving.engine import check_files
from orca.serving.settings import Settings
from orca.store import Store
from tests.serving import models
from tests.serving.servers import ROOT, Answer, Server, binary, elements, serving, tensor, wait_for

BODY = {"inputs": [tensor("x", np.ones((1, 64), "f4"))]}
INFER = "/v2/models/linear/infer"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", ""])
def test_a_foreign_host_is_refused(server: Server, host: str):
    assert server.ask("POST", INFER, BODY, {"Host": host}).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8000", "192.0.2.7:80"])
def test_addresses_and_local_names_are_accepted(server: Server, host: str):
    assert server.ask("POST", INFER, BODY, {"Host": host}).status == 200


def test_no_reply_allows_other_origins(server: Server):
    for path in ("/", INFER, "/v2"):
        answer = server.ask("GET", path, None, {"Origin": "http://evil.example"})
        assert not any(name.startswith("access-control") for name in answer.headers)
    assert "frame-ancestors 'none'" in server.ask("GET", "/").headers["content-security-policy"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    om = Store(tmp_path_factory.mktemp("secured") / "store")
    om.models.put(models.linear(1), "linear")
    om.models.put(models.linear(2), "secret/linear")
    tokens = {"all": om.tokens.add("all"), "some": om.tokens.add("some", pattern="lin*")}
    with serving(om.path, "--auth", "--poll", "0.1", "--access-log") as server:
        yield om, server, tokens


def test_tokens_open_their_models_and_no_others(secured: Any):
    _, server, tokens = secured

    def ask(name: str, headers: dict[str, str] | None = None) -> Answer:
        return server.ask("POST", f"/v2/models/{name}/infer", BODY, headers)

    nobody = ask("linear")
    assert (nobody.status, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="orca"')
    for wrong in ("x", f"{tokens['some'][:-1]}A", "", "é"):
        assert ask("linear", bearer(wrong)).status == 401
    assert ask("linear", bearer(tokens["some"])).status == 200
    assert ask("linear@1", bearer(tokens["some"])).status == 200
    assert ask("secret/linear", bearer(tokens["some"])).status == 403
    assert ask("secret/linear", bearer(tokens["all"])).status == 200
    assert ask("nothing", bearer(tokens["some"])).status == 403
    near = ask("linaer", bearer(tokens["some"]))
    assert (near.status, "secret" in near.text) == (404, False)
    assert server.ask("POST", INFER, BODY, {"Authorization": f"ApiKey user:{tokens['some']}"}).status == 200


def test_only_health_and_pages_work_without_a_token(secured: Any):
    _, server, tokens = secured
    for path in ("/", "/docs", "/static/style.css", "/v2", "/v2/health/live", "/v2/health/ready", "/api/v1/ping"):
        assert server.ask("GET", path).status == 200
    for path in ("/metrics", "/openapi.json", "/v2/models", "/v2/models/linear", f"/api/v1/task/{'0' * 32}/result"):
        assert server.ask("GET", path).status == 401
    names = [entry["name"] for entry in server.ask("GET", "/v2/models", None, bearer(tokens["some"])).json["models"]]
    assert names == ["linear"]
    assert b"secret" not in server.ask("GET", "/openapi.json", None, bearer(tokens["some"])).body


def test_a_removed_token_stops_working(secured: Any):
    om, server, _ = secured
    token = om.tokens.add("short")
    assert server.ask("POST", INFER, BODY, bearer(token)).status == 200
    om.tokens.drop("short")
    wait_for(lambda: server.ask("POST", INFER, BODY, bearer(token)).status == 401, 5, "the token is refused")


def test_tokens_are_neither_in_the_log_nor_in_the_metrics(secured: Any):
    _, server, tokens = secured
    text = server.log + server.ask("GET", "/metrics", None, bearer(tokens["all"])).body.decode()
    assert "/v2/models/linear/infer" in server.log
    assert not any(token.rpartition("_")[2] in text for token in tokens.values())


def test_an_open_address_needs_tokens(tmp_path: Path):
    om = Store(tmp_path / "store")
    om.models.put(models.linear(1), "linear")
    with pytest.raises(ArgumentError, match="needs? tokens|need tokens"):
        Settings(om.path, host="0.0.0.0", auth=False)
    with pytest.raises(RuntimeError, match="orca token add"):
        Server(om.path, "--host", "0.0.0.0")
    token = om.tokens.add("all")
    with serving(om.path, "--host", "0.0.0.0") as server:
        assert server.ask("POST", INFER, BODY).status == 401
        assert server.ask("POST", INFER, BODY, bearer(token)).status == 200


NAMES = [
    "../x",
    "%2e%2e%2fx",
    "..%2f..%2fetc%2fpasswd",
    "a%00b",
    "/etc/passwd",
    "x" * 300,
    "CON",
    "linear@",
    "linear@../x",
    "%",
    "{}",
]
FILES = ["../try.html", "%2e%2e%2f__init__.py", "..", "%00", "style.css%00", "/etc/passwd"]


def test_odd_names_open_nothing_outside_the_store(tmp_path: Path, store: Any):
    """An audit hook in the server's process reports every file that a request opens."""
    shutil.copytree(store.path, tmp_path / "store")
    (tmp_path / "sitecustomize.py").write_text(AUDIT)
    trace = tmp_path / "opened.txt"
    command = [sys.executable, "-m", "orca.cli", "serve", str(tmp_path / "store"), "--port", "0", "--model", "linear"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "AUDIT": str(trace)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().partition("http://127.0.0.1:")[2].split()[0])
        wait_for(trace.exists, 20, "the hook runs")
        ask_raw(port, "/v2/health/live")
        time.sleep(0.2)
        trace.write_text("")
        for name in NAMES:
            for path in (
                f"/v2/models/{name}",
                f"/v2/models/{name}/infer",
                f"/api/v1/model/{name}/",
                f"/v1/models/{name}",
            ):
                assert ask_raw(port, path) in (400, 404, 405), path
            assert ask_raw(port, f"/api/v1/model/linear/predict?datax={name}") in (400, 404), name
            assert ask_raw(port, f"/api/v1/task/{name}/result") == 404, name
        for name in FILES:
            assert ask_raw(port, f"/static/{name}") == 404, name
        opened = {line for line in trace.read_text().splitlines() if not line.startswith(str(tmp_path / "store"))}
        allowed = (sys.prefix, sys.base_prefix, str(ROOT), "/proc/", "/sys/", "/dev/", "/usr/share/zoneinfo")
        assert not [line for line in opened if line.startswith("/") and not line.startswith(allowed)]
    finally:
        process.terminate()
        process.wait(20)


AUDIT = """
import os, sys
if "serve" in sys.argv or any("orca" in part for part in getattr(sys, "orig_argv", [])):
    report = open(os.environ["AUDIT"], "a", buffering=1)
    def hook(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            report.write(os.path.abspath(os.fsdecode(arguments[0])) + chr(10))
    sys.addaudithook(hook)
"""


def ask_raw(port: int, path: str) -> int:
    """Send a path as it is; return the status."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        data = connection.recv(4096)
    return int(data.split()[1])


def test_a_link_in_place_of_weights_is_not_opened(tmp_path: Path):
    om = Store(tmp_path / "store")
    path = Path(om.models.ir_path(om.models.put(models.linear(1), "linear")))
    outside = tmp_path / "outside.bin"
    shutil.move(path.with_suffix(".bin"), outside)
    path.with_suffix(".bin").symlink_to(outside)
    with pytest.raises(DataError, match="model.bin is not a regular file"):
        check_files(str(path))
    with pytest.raises(RuntimeError, match="model.bin"):
        Server(om.path, "--model", "linear")


def png(width: int, height: int) -> bytes:
    """Return a PNG that claims to be large and is a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def send_image(server: Server, data: bytes) -> Answer:
    body, headers = binary([("x", [1], "BYTES", elements(data))])
    return server.ask("POST", "/v2/models/flowers/image/infer", body, headers)


def test_image_bombs_and_deep_json_need_no_memory(server: Server):
    before = server.rss
    for side in (100_000, 5_000):
        answer = send_image(server, png(side, side))
        assert (answer.status, "more than 1,000,000 pixels" in answer.text) == (400, True)
    assert send_image(server, png(1000, 1000)[:-20]).status == 400
    for body in (b"[" * (2**21 - 1), b'{"a":' * 400_000, b'{"inputs": [' + b"{}," * 500_000 + b"{}]}"):
        assert server.ask("POST", INFER, body, {"Content-Type": "application/json"}).status == 400
    assert server.rss - before < 150 * 2**20
    assert server.ask("POST", INFER, BODY).status == 200


def test_a_hundred_megabytes_of_brackets_are_refused(server: Server):
    before = server.rss
    answer = server.ask("POST", INFER, b"[" * (100 * 2**20), {"Content-Type": "application/json"})
    assert answer.status == 413
    assert server.rss - before < 50 * 2**20


def test_slow_clients_are_disconnected_and_do_not_disturb_others(store: Any):
    with serving(store.path, "--model", "linear", "--timeout", "2") as server:
        slow = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(50)]
        head = (
            f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        )
        for number, connection in enumerate(slow):
            connection.sendall(head.encode() if number % 2 else b"POST /v2 HTTP/1.1\r\nX: ")
        started = time.monotonic()
        while time.monotonic() - started < 3:
            assert server.ask("POST", INFER, BODY).status == 200
            for connection in slow:
                send_byte(connection)
            time.sleep(0.5)
        assert slow[1].recv(30).startswith(b"HTTP/1.1 408 ")
        for connection in slow[:2]:
            wait_for(lambda connection=connection: is_closed(connection), 15, "the server closes the connection")
        for connection in slow:
            connection.close()


def send_byte(connection: socket.socket) -> None:
    try:
        connection.sendall(b"[")
    except OSError:
        pass


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        send_byte(connection)
        return connection.recv(1000) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_headers_have_a_size_limit(server: Server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        try:
            for _ in range(100):
                connection.sendall(
                    b"GET / HTTP/1.1\r\nHost: localhost\r\n" if _ == 0 else b"X: " + b"x" * 5000 + b"\r\n"
                )
            data = connection.recv(100)
        except ConnectionError:
            data = b""
    assert data == b"" or data.startswith(b"HTTP/1.1 400 ")
    assert server.ask("GET", "/v2/health/live").status == 200


def test_the_bytes_of_a_picture_never_reach_the_reply(server: Server):
    marker = b"SECRET-MARKER"
    file = io.BytesIO(marker * 10)
    assert marker not in send_image(server, file.getvalue()).body
