"""The other sides of benchmarks/serving.py: MLflow's scoring server, a plain Ray Serve deployment, and a bare route.

All of them run the same IR with the same OpenVINO settings as Orca's server: one inference thread, latency, float32.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

PROPERTIES = {
    "INFERENCE_NUM_THREADS": 1,
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": False,
}


class Model:
    """The IR with one infer request, which MLflow's threads use one after the other."""

    def __init__(self, path: str) -> None:
        import openvino

        self._tensor = openvino.Tensor
        self._lock = threading.Lock()
        self._request = openvino.Core().compile_model(path, "CPU", PROPERTIES).create_infer_request()

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with self._lock:
            self._request.set_input_tensor(0, self._tensor(x, shared_memory=True))
            self._request.start_async()
            self._request.wait()
            output: np.ndarray[Any, Any] = self._request.get_output_tensor(0).data.copy()
        return output


# MLflow


def save_for_mlflow(ir: str, folder: str, shape: tuple[int, ...]) -> None:
    """Save a pyfunc with a tensor signature, so that MLflow checks shapes too."""
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    class Predictor(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined]
        def load_context(self, context):  # type: ignore[no-untyped-def]  # MLflow would interpret type hints
            import serving_peers

            self.model = serving_peers.Model(context.artifacts["xml"])

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            return self.model(np.ascontiguousarray(model_input, "f4"))

    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("float32"), shape)]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, -1))]),
    )
    artifacts = {"xml": ir, "bin": str(Path(ir).with_suffix(".bin"))}
    mlflow.pyfunc.save_model(folder, python_model=Predictor(), artifacts=artifacts, signature=signature)


def mlflow_command(folder: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the command that MLflow itself uses, and its environment."""
    from mlflow.pyfunc import scoring_server

    command, environment = scoring_server.get_cmd(folder, port, "127.0.0.1", None, 1)  # type: ignore[arg-type]
    words = command.split()
    here = str(Path(__file__).parent)
    return [sys.executable, "-m", *words, "--log-level", "warning"], {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, [here, environment.get("PYTHONPATH", "")])),
    }


# A bare route


def bare(ir: str) -> Any:
    """Return a Starlette application with one route: JSON in, JSON out, without checks, limits, tokens or metrics."""
    import orjson
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    model = Model(ir)

    async def infer(request: Request) -> Response:
        (tensor,) = orjson.loads(await request.body())["inputs"]
        x = np.array(tensor["data"], "f4").reshape(tensor["shape"])
        y = model(x)
        output = {"name": "y", "datatype": "FP32", "shape": y.shape, "data": y.ravel()}
        reply = {"model_name": "linear", "model_version": "1", "outputs": [output]}
        return Response(orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")

    return Starlette(routes=[Route("/v2/models/linear/infer", infer, methods=["POST"])])


def serve_bare(ir: str, port: int) -> None:
    """Run the bare route on uvicorn, with the same event loop and parser as Orca's server."""
    import uvicorn

    uvicorn.run(bare(ir), port=port, log_level="warning", loop="uvloop", http="httptools", access_log=False)


# Ray Serve


def serve_on_ray(ir: str, port: int) -> None:
    """Run a plain deployment until the process is ended."""
    import ray
    from ray import serve
    from starlette.requests import Request

    @serve.deployment(num_replicas=1, max_ongoing_requests=64)
    class Plain:
        def __init__(self) -> None:
            self.model = Model(ir)

        async def __call__(self, request: Request) -> Any:
            (tensor,) = (await request.json())["inputs"]
            y = self.model(np.array(tensor["data"], "f4").reshape(tensor["shape"]))
            return {"outputs": [{"name": "y", "shape": list(y.shape), "data": y.ravel().tolist()}]}

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Plain.bind(), name="plain", route_prefix="/", blocking=True)


if __name__ == "__main__":
    {"bare": serve_bare, "ray": serve_on_ray}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
