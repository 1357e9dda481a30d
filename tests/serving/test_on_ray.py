"""The same application on Ray Serve gives the same answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.serving.models import weights
from tests.serving.servers import Client, binary, raw_outputs, tensor, wait_for

pytest.importorskip("ray.serve")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

X = np.random.default_rng(3).standard_normal((3, 64)).astype("f4")


@pytest.fixture(scope="module")
def client(ray_cluster: Any, store: Any) -> Iterator[Client]:
    from ray import serve

    from orca.serving.ray import deploy, remove
    from orca.serving.settings import Settings

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    deploy(Settings(store.path, models=("linear", "flowers/image"), port=port), replicas=2)
    client = Client(port)
    yield client
    client.close()
    remove()
    serve.shutdown()


def test_all_protocols_answer_on_ray(client: Client):
    expected = X @ weights(2)
    json_v2 = client.ask("POST", "/v2/models/linear/infer", {"inputs": [tensor("x", X)]})
    body, headers = binary([("x", X.shape, "FP32", X.tobytes())], parameters={"binary_data_output": True})
    (raw,) = raw_outputs(client.ask("POST", "/v2/models/linear/infer", body, headers))
    omega = client.ask("PUT", "/api/v1/model/linear/predict", {"data": [{"x": row.tolist()} for row in X]})
    serving = client.ask("POST", "/v1/models/linear:predict", {"instances": X.tolist()})
    np.testing.assert_allclose(raw, expected, rtol=1e-4, atol=1e-5)
    for other in (json_v2.json["outputs"][0]["data"], omega.json["result"], serving.json["predictions"]):
        assert np.array(other, "f4").tobytes() == raw.tobytes()


def test_errors_health_versions_and_tasks_on_ray(client: Client):
    wrong = client.ask("POST", "/v2/models/linear/infer", {"inputs": [tensor("x", X[:, :63])]})
    assert (wrong.status, wrong.text) == (400, "The input 'x' takes [?, 64]; the request has [3, 63].")
    assert client.ask("POST", "/v2/models/linaer/infer", {"inputs": []}).status == 404
    assert client.ask("DELETE", "/v2/models/linear/infer").status == 405
    assert client.ask("GET", "/v2/health/ready").json["ready"] is True
    assert client.ask("POST", "/v2/models/linear^/infer", {"inputs": [tensor("x", X)]}).json["model_version"] == "1"
    assert client.ask("GET", "/v2", headers={"Host": "evil.example"}).status == 421
    task = client.ask("PUT", "/api/v1/model/linear/predict?async=1", {"data": [{"x": X[0].tolist()}]})
    location = task.headers["location"]
    wait_for(lambda: client.ask("GET", location).json["status"] == "SUCCESS", 10, "the result of the task")
    assert "try a model" in client.ask("GET", "/").body.decode().lower()
