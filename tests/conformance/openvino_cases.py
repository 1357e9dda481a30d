"""The OpenVINO backend as a case of the conformance checks: it only predicts."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile

import numpy as np
import openvino
import openvino.opset13 as ops

from orca import Estimator
from orca.testing import BackendCase
from tests.backends.openvino_models import dense, dense_result


@functools.cache
def folder() -> str:
    path = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def dense_file() -> str:
    return dense(f"{folder()}/dense.xml")


@functools.cache
def two_file() -> str:
    """Inputs "left" (2 numbers) and "right" (4 numbers); outputs "total" and "rest"."""
    left = ops.parameter([-1, 2], np.float32, name="left")
    right = ops.parameter([-1, 4], np.float32, name="right")
    total = ops.add(*(ops.reduce_sum(part, ops.constant(np.array([1])), True) for part in (left, right)))
    made = openvino.Model([total, ops.tanh(right)], [left, right], "two")
    for port, name in zip((*made.inputs, *made.outputs), ("left", "right", "total", "rest"), strict=True):
        port.tensor.set_names({name})
    path = f"{folder()}/two.xml"
    openvino.save_model(made, path, compress_to_fp16=False)
    return path


PLAIN = [
    BackendCase(
        "openvino.openvino",
        lambda workers, **more: Estimator.from_openvino(model_path=dense_file(), workers=workers, **more),
        outputs=lambda est, x: np.asarray(dense_result(x)),
        several=lambda workers: Estimator.from_openvino(model_path=two_file(), workers=workers),
        inference_only=True,
    )
]
VARIANTS: dict[BackendCase, list[str]] = {}
