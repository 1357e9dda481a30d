"""Every mistake in a request has its status and a sentence that never repeats the values."""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
import pytest

from tests.serving.servers import Server, binary, elements, in_threads, serving, tensor, wait_for

X = np.full((1, 64), 0.123456, "f4")
INFER, PREDICT, OMEGA = "/v2/models/linear/infer", "/v1/models/linear:predict", "/api/v1/model/linear/predict"


def v2(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**tensor("x", X), **changes}]}


def without(key: str) -> dict[str, Any]:
    entry = tensor("x", X)
    del entry[key]
    return {"inputs": [entry]}


def row(count: int = 64) -> list[float]:
    return [0.123456] * count


JSON = {"Content-Type": "application/json"}
CASES: list[tuple[str, str, Any, int, str]] = [
    # Names
    ("POST", "/v2/models/linaer/infer", v2(), 404, "no model 'linaer'. Did you mean 'linear'"),
    ("POST", "/v2/models/linear/versions/9/infer", v2(), 404, "'linear@9'"),
    ("POST", "/v2/models/linear@staging/infer", v2(), 404, "'linear@staging'"),
    ("POST", "/v2/models/linear^^^/infer", v2(), 404, "'linear^^^'"),
    ("POST", "/v1/models/linear/labels/none:predict", {"instances": [row()]}, 404, "'linear@none'"),
    ("PUT", "/api/v1/model/linaer/predict", {"data": [{"x": row()}]}, 404, "Did you mean 'linear'"),
    ("GET", "/api/v1/model/linear/predict?datax=nothing", None, 404, "no dataset 'nothing'"),
    ("GET", "/nothing", None, 404, "no such path"),
    # Bodies
    ("POST", INFER, b"{", 400, "not JSON"),
    ("POST", INFER, b"[" * 100_000, 400, "not JSON"),
    ("POST", INFER, b'{"inputs": NaN}', 400, "not JSON"),
    ("POST", INFER, b"[1, 2]", 400, "JSON array; it has to be an object"),
    ("POST", INFER, b"\xff\xfe", 400, "not JSON"),
    ("POST", INFER, b"", 400, "not JSON"),
    ("POST", INFER, {}, 400, "no list of 'inputs'"),
    ("POST", INFER, {"inputs": [7]}, 400, "no list of 'inputs'"),
    ("POST", INFER, {"inputs": []}, 400, "no input 'x'"),
    ("POST", INFER, {"inputs": [tensor("x", X), tensor("x", X)]}, 400, "'x' occurs twice"),
    ("POST", INFER, {"inputs": [tensor("z", X)]}, 400, "Inputs: 'x'"),
    ("POST", INFER, {**v2(), "id": 7}, 400, "id has to be a text"),
    ("POST", INFER, {**v2(), "outputs": [{"name": "z"}]}, 400, "Outputs: 'y'"),
    ("POST", INFER, {**v2(), "outputs": [{"name": "y"}, {"name": "y"}]}, 400, "'y' occurs twice"),
    ("POST", INFER, {**v2(), "parameters": []}, 400, "have to be an object"),
    ("POST", INFER, v2(parameters={"shared_memory_region": "a"}), 400, "'shared_memory_region'"),
    ("POST", INFER, without("data"), 400, "no 'data'"),
    ("POST", INFER, without("shape"), 400, "list of integers"),
    ("POST", INFER, without("datatype"), 400, "FP32"),
    # Shapes, lengths and types
    ("POST", INFER, v2(shape=[1, 63]), 400, "'x' takes [?, 64]; the request has [1, 63]."),
    ("POST", INFER, v2(shape=[64]), 400, "takes [?, 64]; the request has [64]."),
    ("POST", INFER, v2(shape=[1, 64, 1]), 400, "the request has [1, 64, 1]."),
    ("POST", INFER, v2(shape=[2, 64], data=row()), 400, "has 128 values; the request has 64."),
    ("POST", INFER, v2(shape=[2, 64]), 400, "its data has [1, 64]"),
    ("POST", INFER, v2(shape=[10**15, 64], data=row()), 400, "the request has 64."),
    ("POST", INFER, v2(shape=[-1, 64]), 400, "integers of at least 0"),
    ("POST", INFER, v2(shape=[10**30, 64], data=row()), 400, ""),
    ("POST", INFER, v2(shape=[0, 64], data=[]), 400, "is empty"),
    ("POST", INFER, v2(shape=[1.0, 64]), 400, "list of integers"),
    ("POST", INFER, v2(data=[row(), row(3)]), 400, "different lengths"),
    ("POST", INFER, v2(data=[[*row(63), "0.123456"]]), 400, "takes numbers (float32) only"),
    ("POST", INFER, v2(data=[[*row(63), None]]), 400, "takes numbers (float32) only"),
    ("POST", INFER, v2(data=[[*row(63), True]]), 400, "takes numbers (float32) only"),
    ("POST", INFER, v2(data=[[*row(63), 1e300]]), 400, "beyond it"),
    ("POST", INFER, v2(datatype="FP64"), 400, "'x' takes FP32; the request has FP64."),
    ("POST", INFER, v2(datatype="INT64"), 400, "'x' takes FP32; the request has INT64."),
    ("POST", INFER, v2(datatype="BYTES"), 400, "have to be images"),
    ("POST", INFER, v2(datatype="UINT8", data=[[1] * 63 + [256]]), 400, "beyond it"),
    ("POST", INFER, v2(datatype="UINT8", data=[[1] * 63 + [0.5]]), 400, "takes integers (uint8) only"),
    # TF Serving
    ("POST", PREDICT, {}, 400, "either 'instances'"),
    ("POST", PREDICT, {"instances": [row()], "inputs": [row()]}, 400, "either 'instances'"),
    ("POST", PREDICT, {"instances": []}, 400, "at least one row"),
    ("POST", PREDICT, {"instances": [row(63)]}, 400, "takes [?, 64]; the request has [1, 63]."),
    ("POST", PREDICT, {"instances": row()}, 400, "takes [?, 64]; the request has [64]."),
    ("POST", PREDICT, {"inputs": {"z": [row()]}}, 400, "no 'x'"),
    ("POST", PREDICT, {"instances": [{"z": row()}]}, 400, "Row 0 of 'instances' has no 'x'"),
    ("POST", "/v1/models/pair:predict", {"instances": [{"a": row(3)}]}, 400, "has no 'b'"),
    ("POST", "/v1/models/pair:predict", {"inputs": {"a": [row(3)], "b": [[1] * 3] * 2}}, 400, "numbers of rows: 1, 2"),
    # omega|ml
    ("PUT", OMEGA, None, 400, "neither a body nor ?datax="),
    ("PUT", OMEGA, {}, 400, "no 'data'"),
    ("PUT", OMEGA, {"data": []}, 400, "at least one object"),
    ("PUT", OMEGA, {"data": [{"x": row()}], "columns": ["z"]}, 400, "Row 0 has no column 'z'. Its columns: x."),
    ("PUT", OMEGA, {"data": [{"x": row()}, {"y": 1}]}, 400, "Row 1 has no column 'x'. Its columns: y."),
    ("PUT", OMEGA, {"data": [{"x": row(), "y": 1}], "columns": ["x", "y"], "shape": [64]}, 400, "has 2 columns"),
    ("PUT", OMEGA, {"data": [{"x": row(63)}], "shape": [64]}, 400, "Row 0 has 63 values; the shape [64] has 64."),
    ("PUT", OMEGA, {"data": [{"x": row()}], "shape": [8, 8]}, 400, "takes [?, 64]; the request has [1, 8, 8]."),
    ("PUT", OMEGA, {"data": [{"x": row()}], "shape": [-64]}, 400, "integers of at least 0"),
    ("PUT", f"{OMEGA}?datax=rows", {"data": []}, 400, "both a body and ?datax="),
    # Verbs
    ("DELETE", INFER, None, 405, "POST"),
    ("GET", INFER, None, 405, "POST"),
    ("POST", OMEGA, {}, 405, "GET, HEAD, PUT"),
    ("POST", "/metrics", None, 405, "GET, HEAD"),
    ("OPTIONS", INFER, None, 405, "POST"),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case[1][:24]}" for number, case in enumerate(CASES)])
def test_a_mistake_has_its_status_and_its_sentence(server: Server, case: tuple[str, str, Any, int, str]):
    method, path, body, status, words = case
    answer = server.ask(method, path, body, JSON if isinstance(body, bytes) else None)
    assert answer.status == status, answer.body
    key = "message" if path.startswith("/api/") else "error"
    assert list(answer.json) == [key]
    assert words in answer.text
    assert "0.123456" not in answer.text
    assert "Traceback" not in answer.text
    if status == 405:
        assert answer.headers["allow"] == words


RAW = X.tobytes()


@pytest.mark.parametrize(
    ("length", "body", "words"),
    [
        ("-1", b"{}", "'-1'; the body has 2 bytes"),
        ("100", b"{}", "'100'; the body has 2 bytes"),
        ("x", b"{}", "'x'; the body has 2 bytes"),
        (None, binary([("x", [1, 64], "FP32", RAW)])[0] + b"more", "256 bytes by binary_data_size; the body has 260"),
        (None, binary([("x", [1, 64], "FP32", RAW)])[0][:-4], "is 256; the body has 252 bytes left"),
        (None, binary([("x", [2, 64], "FP32", RAW)])[0], "has 512 bytes; the request has 256"),
        (None, binary([("x", [10**12, 64], "FP32", RAW)])[0], "the request has 256"),
        (None, binary([("x", [1, 32], "FP64", RAW)])[0], "takes FP32; the request has FP64"),
    ],
)
def test_binary_sizes_have_to_agree(server: Server, length: str | None, body: bytes, words: str):
    head = body.rindex(b"]}") + 2 if b"]}" in body else len(body)
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(head) if length is None else length,
    }
    answer = server.ask("POST", INFER, body, headers)
    assert answer.status == 400, answer.body
    assert words in answer.text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (elements(b"GIF89a"), "neither JPEG nor PNG"),
        (elements(b""), "neither JPEG nor PNG"),
        (b"\x00", "within the length"),
        (b"\xff\xff\xff\x7f1234", "2147483647 bytes by its length; 4 are left"),
        (elements(b"a", b"b"), "1 BYTES by its shape; 2 follow"),
    ],
)
def test_images_have_to_be_images(server: Server, data: bytes, words: str):
    body, headers = binary([("x", [1], "BYTES", data)])
    answer = server.ask("POST", "/v2/models/flowers/image/infer", body, headers)
    assert answer.status == 400, answer.body
    assert words in answer.text


def test_bodies_of_other_types_are_refused(server: Server):
    body = json.dumps(v2()).encode()
    for headers in ({"Content-Type": "text/plain"}, {**JSON, "Content-Encoding": "gzip"}):
        assert server.ask("POST", INFER, body, headers).status == 415
    octets = {"Content-Type": "application/octet-stream"}
    assert server.ask("POST", PREDICT, b"{}", octets).status == 415
    assert server.ask("POST", INFER, body, {"Content-Type": "application/json; charset=utf-8"}).status == 200


def test_a_large_body_is_refused_with_and_without_its_length(server: Server):
    answer = server.ask("POST", INFER, b"[" * (2**21 + 1), JSON)
    assert (answer.status, "2,097,152 bytes" in answer.text, "--max-body" in answer.text) == (413, True, True)
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"[" * 2**16
        for _ in range(33):
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def slow(steps: int) -> dict[str, Any]:
    return {
        "inputs": [
            tensor("x", np.ones((1, 1500), "f4")),
            tensor("steps", np.array(steps, "i4"), "INT32") | {"data": [steps]},
        ]
    }


def test_a_slow_model_ends_in_504_and_a_full_queue_in_503(server: Server):
    answer = server.ask("POST", "/v2/models/slow/infer", slow(60_000))
    assert (answer.status, "--timeout" in answer.text) == (504, True)
    answers = in_threads(24, lambda index: server.ask("POST", "/v2/models/slow/infer", slow(200)))
    statuses = {answer.status for answer in answers}
    assert 503 in statuses
    assert statuses <= {200, 503, 504}
    full = next(answer for answer in answers if answer.status == 503)
    assert (full.headers["retry-after"], "--queue" in full.text) == ("1", True)


def test_a_failing_model_answers_500_with_an_id_that_is_in_the_log(server: Server):
    good, bad = ({"inputs": [tensor("x", X[:, :4] * factor)]} for factor in (1, 5000))
    answer = server.ask("POST", "/v2/models/breakable/infer", bad)
    assert answer.status == 500, answer.body
    number = answer.text.rpartition(" ")[2].rstrip(".")
    wait_for(lambda: number in server.log, 5, "the id is in the log")
    assert "617.2" not in server.log
    assert server.ask("POST", "/v2/models/breakable/infer", good).status == 200


def test_a_model_that_never_ends_does_not_stop_the_others_nor_the_end_of_the_server(store: Any):
    with serving(store.path, "--timeout", "1", "--model", "slow", "--model", "linear") as server:
        assert server.ask("POST", "/v2/models/slow/infer", slow(-1)).status == 504
        assert server.ask("POST", INFER, v2()).status == 200
        assert server.stop(20) == 0
