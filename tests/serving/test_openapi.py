"""The OpenAPI document describes what the server does: schemathesis tries it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.serving.servers import Server

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_the_document_lists_every_protocol_and_the_models(server: Server):
    document: dict[str, Any] = server.ask("GET", "/openapi.json").json
    assert document["openapi"] == "3.1.0"
    for path in ("/v2/models/{model}/infer", "/v1/models/{model}:predict", "/api/v1/model/{model}/predict", "/metrics"):
        assert path in document["paths"]
    (name,) = document["paths"]["/v2/models/{model}/infer"]["parameters"]
    assert "flowers/image" in name["schema"]["enum"]


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_schemathesis_finds_no_server_error_and_no_undocumented_status(server: Server, tmp_path: Any):
    pytest.importorskip("schemathesis")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", CHECKS]
    command += ["--max-examples", "25", "--seed", "1", "--phases", "examples,coverage,fuzzing", "--no-color"]
    command += ["--request-timeout", "20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=160)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert server.ask("GET", "/v2/health/ready").status == 200
