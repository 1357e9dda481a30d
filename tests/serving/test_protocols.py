"""What the protocols return: the same numbers, bit for bit, in every form."""

from __future__ import annotations

import base64
import io
import time
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from tests.serving.models import weights
from tests.serving.servers import Server, binary, elements, raw_outputs, tensor

X = np.random.default_rng(3).standard_normal((3, 64)).astype("f4")


def predicted(x: np.ndarray[Any, Any], version: int) -> np.ndarray[Any, Any]:
    return x @ weights(version)


def values(output: Any) -> np.ndarray[Any, Any]:
    return np.array(output, "f4")


def infer(server: Server, path: str, x: np.ndarray[Any, Any] = X) -> Any:
    answer = server.ask("POST", path, {"inputs": [tensor("x", x)]})
    assert answer.status == 200, answer.body
    return answer.json


def test_the_snippet_of_the_seed_runs_as_it_is(server: Server):
    img = np.random.default_rng(0).integers(0, 256, (192, 192, 3))
    predict_url = f"{server.url}/api/v1/model/flowers/image/predict"
    resp = requests.put(
        predict_url,
        json={
            "columns": ["x"],
            "data": [{"x": img.flatten().tolist()}],
            "shape": [192, 192, 3],
        },
    )
    data = resp.json()
    prediction = data["result"]
    np.testing.assert_allclose(prediction, [img.mean(axis=(0, 1)) @ weights(1, 3, 5)], rtol=1e-5)
    assert data["model"] == "flowers/image"
    assert data["resource_uri"] == "/api/v1/model/flowers/image/predict"


def test_all_protocols_return_the_same_bits(server: Server):
    json_v2 = infer(server, "/v2/models/linear/infer")
    body, headers = binary([("x", X.shape, "FP32", X.tobytes())], parameters={"binary_data_output": True})
    (raw,) = raw_outputs(server.ask("POST", "/v2/models/linear/infer", body, headers))
    rows = [{"x": row.tolist()} for row in X]
    omega = server.ask("PUT", "/api/v1/model/linear/predict", {"columns": ["x"], "data": rows}).json
    instances = server.ask("POST", "/v1/models/linear:predict", {"instances": X.tolist()}).json
    columns = server.ask("POST", "/v1/models/linear:predict", {"inputs": {"x": X.tolist()}}).json
    np.testing.assert_allclose(raw, predicted(X, 2), rtol=1e-4, atol=1e-5)
    for other in (
        values(json_v2["outputs"][0]["data"]).reshape(3, 10),
        values(omega["result"]),
        values(instances["predictions"]),
        values(columns["outputs"]),
    ):
        assert other.tobytes() == raw.tobytes()


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/v2/models/linear/infer", 2),
        ("/v2/models/linear/versions/1/infer", 1),
        ("/v2/models/linear@production/infer", 1),
        ("/v2/models/linear@latest/infer", 2),
        ("/v2/models/linear^/infer", 1),
        ("/v2/models/linear%5E/infer", 1),
    ],
)
def test_a_name_may_refer_to_a_version(server: Server, path: str, version: int):
    reply = infer(server, path)
    assert reply["model_version"] == str(version)
    np.testing.assert_allclose(
        values(reply["outputs"][0]["data"]).reshape(3, 10), predicted(X, version), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("tail", ["/versions/1", "/labels/production"])
def test_tf_serving_knows_versions_and_labels(server: Server, tail: str):
    answer = server.ask("POST", f"/v1/models/linear{tail}:predict", {"instances": X.tolist()})
    assert answer.headers["orca-model-version"] == "1"
    np.testing.assert_allclose(answer.json["predictions"], predicted(X, 1), rtol=1e-4, atol=1e-5)
    status = server.ask("GET", f"/v1/models/linear{tail}").json["model_version_status"]
    assert [(entry["version"], entry["state"]) for entry in status] == [("1", "AVAILABLE")]


def test_models_with_several_inputs_and_outputs(server: Server):
    a, b = np.array([[1.5, 2, 3], [4, 5, 6]], "f4"), np.array([[1, 1, 1], [2, 2, 2]], "i4")
    reply = server.ask(
        "POST",
        "/v2/models/pair/infer",
        {"id": "seven", "inputs": [tensor("b", b, "INT32"), tensor("a", a)], "outputs": [{"name": "difference"}]},
    ).json
    assert reply["id"] == "seven"
    assert [output["name"] for output in reply["outputs"]] == ["difference"]
    assert values(reply["outputs"][0]["data"]).reshape(2, 3).tolist() == (a - b).tolist()
    rows = [{"a": left.tolist(), "b": right.tolist()} for left, right in zip(a, b, strict=True)]
    omega = server.ask("PUT", "/api/v1/model/pair/predict", {"data": rows}).json["result"]
    predictions = server.ask("POST", "/v1/models/pair:predict", {"instances": rows}).json["predictions"]
    assert omega["sum"] == (a + b).tolist()
    assert [row["difference"] for row in predictions] == (a - b).tolist()


def test_numbers_of_a_smaller_type_are_converted(server: Server):
    x = np.arange(128, dtype="u1").reshape(2, 64)
    body, headers = binary([("x", x.shape, "UINT8", x.tobytes())], parameters={"binary_data_output": True})
    (raw,) = raw_outputs(server.ask("POST", "/v2/models/linear/infer", body, headers))
    np.testing.assert_allclose(raw, predicted(x.astype("f4"), 2), rtol=1e-3)


def test_nan_and_infinity_are_null_in_json_and_exact_in_binary(server: Server):
    x = np.array([[-1, 0, 1]], "f4")
    answer = server.ask("POST", "/v2/models/log/infer", {"inputs": [tensor("x", x)]})
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [None, None, 0.0])
    assert server.ask("POST", "/v1/models/log:predict", {"instances": x.tolist()}).json == {
        "predictions": [[None, None, 0.0]]
    }
    body, headers = binary(
        [("x", x.shape, "FP32", x.tobytes())], outputs=[{"name": "y", "parameters": {"binary_data": True}}]
    )
    (raw,) = raw_outputs(server.ask("POST", "/v2/models/log/infer", body, headers))
    assert np.isnan(raw[0, 0])
    assert raw[0, 1] == -np.inf


def picture(kind: str, size: tuple[int, int] = (192, 192)) -> tuple[bytes, np.ndarray[Any, Any]]:
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    pixels = np.stack([x % 256, y % 256, (x + y) % 256], -1).astype("u1")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue(), np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_images_are_decoded(server: Server, kind: str):
    data, pixels = picture(kind)
    body, headers = binary([("x", [1], "BYTES", elements(data))])
    reply = server.ask("POST", "/v2/models/flowers/image/infer", body, headers).json
    expected = [pixels.mean(axis=(0, 1)) @ weights(1, 3, 5)]
    np.testing.assert_allclose([reply["outputs"][0]["data"]], expected, rtol=1e-4)
    encoded = base64.b64encode(data).decode()
    other = server.ask("POST", "/v1/models/flowers/image:predict", {"instances": [{"b64": encoded}]}).json
    np.testing.assert_allclose(other["predictions"], expected, rtol=1e-4)


def test_images_of_another_size_are_resized(server: Server):
    data, _ = picture("PNG", (384, 300))
    body, headers = binary([("x", [2], "BYTES", elements(data, data))])
    reply = server.ask("POST", "/v2/models/flowers/image/infer", body, headers).json
    assert reply["outputs"][0]["shape"] == [2, 5]


def test_stored_datasets_are_predicted(server: Server, store: Any):
    result = server.ask("GET", "/api/v1/model/linear/predict?datax=rows").json["result"]
    np.testing.assert_allclose(result, predicted(store.datasets.get("rows"), 2), rtol=1e-4, atol=1e-5)
    pair = server.ask("GET", "/api/v1/model/pair/predict?datax=columns").json["result"]
    assert pair["sum"] == (np.arange(12.0).reshape(4, 3) + 1).tolist()
    large = server.ask("GET", "/api/v1/model/pair/predict?datax=large")
    assert (large.status, "beyond it" in large.text) == (400, True)


def test_a_virtual_dataset_is_not_run_without_permission(store: Any, server: Server, tmp_path: Any):
    from orca.store import virtualobj

    @virtualobj
    def program(**options: Any) -> Any:
        import pathlib

        import numpy

        pathlib.Path(options["path"]).touch()
        return numpy.ones((2, 64), "f4")

    store.datasets.put(program, "program", replace=True)
    answer = server.ask("GET", f"/api/v1/model/linear/predict?datax=program{{path={tmp_path}/ran}}")
    assert (answer.status, "--allow-virtual" in answer.text) == (403, True)
    assert list(tmp_path.iterdir()) == []


def test_an_asynchronous_request_returns_a_task(server: Server):
    rows = [{"x": row.tolist()} for row in X]
    answer = server.ask("PUT", "/api/v1/model/linear/predict?async=1", {"data": rows})
    assert answer.status == 202
    location = answer.headers["location"]
    assert location == f"/api/v1/task/{answer.json['task_id']}/result"
    deadline = time.monotonic() + 10
    while (reply := server.ask("GET", location)).status == 202:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert reply.json["status"] == "SUCCESS"
    np.testing.assert_allclose(reply.json["response"]["result"], predicted(X, 2), rtol=1e-4, atol=1e-5)
    assert server.ask("GET", location.replace("result", "status")).json["status"] == "SUCCESS"
    assert server.ask("GET", f"/api/v1/task/{'0' * 32}/result").status == 404


def test_metadata_of_a_model(server: Server):
    reply = server.ask("GET", "/v2/models/linear").json
    assert reply == {
        "name": "linear",
        "versions": ["1", "2"],
        "platform": "openvino",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 10]}],
    }
    omega = server.ask("GET", "/api/v1/model/linear@production/").json
    assert omega["model"] == "linear@production"
    assert (omega["result"]["name"], omega["result"]["version"]) == ("linear", 1)
    signature = server.ask("GET", "/v1/models/linear/metadata").json["metadata"]["signature_def"]["signature_def"]
    assert signature["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"


def test_health_and_ping_and_metrics(server: Server):
    assert server.ask("GET", "/v2/health/live").json == {"live": True}
    assert server.ask("GET", "/v2/health/ready").json == {"ready": True, "store": "reachable", "problems": 0}
    assert server.ask("GET", "/v2").json["extensions"] == ["binary_tensor_data"]
    assert abs(server.ask("GET", "/api/v1/ping").json["ping"] - time.time()) < 60
    infer(server, "/v2/models/linear/infer")
    text = server.ask("GET", "/metrics").body.decode()
    assert 'orca_requests_total{model="linear",protocol="v2",status="200"}' in text
    assert 'orca_model_version{model="linear",reference="linear"} 2.0' in text


def test_triton_client_in_json_and_binary(server: Server):
    http = pytest.importorskip("tritonclient.http")
    client = http.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("linear")
    assert client.is_model_ready("linear", "1")
    assert client.get_server_metadata()["name"] == "orca"
    assert client.get_model_metadata("linear")["inputs"][0]["shape"] == [-1, 64]
    results = []
    for is_binary in (True, False):
        given = http.InferInput("x", list(X.shape), "FP32")
        given.set_data_from_numpy(X, binary_data=is_binary)
        wanted = http.InferRequestedOutput("y", binary_data=is_binary)
        results.append(client.infer("linear", [given], outputs=[wanted]).as_numpy("y"))
        results.append(client.infer("linear", [given]).as_numpy("y"))
    np.testing.assert_allclose(results[0], predicted(X, 2), rtol=1e-4, atol=1e-5)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    given = http.InferInput("x", list(X.shape), "FP32")
    given.set_data_from_numpy(X)
    with pytest.raises(Exception, match="The server has no model 'linaer'. Did you mean 'linear'"):
        client.infer("linaer", [given])
    client.close()


def test_a_small_server_needs_less_than_200_mb(store: Any):
    from tests.serving.servers import serving

    with serving(store.path, "--model", "linear@production") as server:
        infer(server, "/v2/models/linear/infer")
        assert server.ask("GET", "/v2/models/linear/versions/2/ready").status == 404
        assert server.ask("GET", "/v2/models/linear/versions/1/ready").status == 200
        assert server.ask("GET", "/v2/models/pair/ready").status == 404
        assert server.rss < 200 * 2**20
