"""Small OpenVINO models for tests, built from its operations, and their results computed by numpy."""

from __future__ import annotations

import numpy as np
import openvino
import openvino.opset13 as ops

rng = np.random.default_rng(7)
WEIGHTS = rng.normal(size=(6, 5)).astype("f4")
LEFT = rng.normal(size=(2, 3)).astype("f4")


def dense(path, rows=-1):
    """One input "features" of 6 numbers, one output of 5: tanh(x @ WEIGHTS)."""
    x = ops.parameter([rows, 6], np.float32, name="features")
    model = openvino.Model([ops.tanh(ops.matmul(x, ops.constant(WEIGHTS), False, False))], [x], "dense")
    model.inputs[0].tensor.set_names({"features"})
    model.outputs[0].tensor.set_names({"score"})
    openvino.save_model(model, str(path), compress_to_fp16=False)
    return str(path)


def dense_result(x):
    return np.tanh(x.astype("f4") @ WEIGHTS)


def mean(path, width):
    """One input "features" of `width` numbers, one output: their mean."""
    x = ops.parameter([-1, width], np.float32, name="features")
    model = openvino.Model([ops.reduce_mean(x, ops.constant(np.array([1])), True)], [x], "mean")
    model.inputs[0].tensor.set_names({"features"})
    openvino.save_model(model, str(path), compress_to_fp16=False)
    return str(path)


def two(path):
    """Inputs "zeta" (2 numbers) and "alpha" (3 numbers); outputs "wide" (zeta @ LEFT - alpha) and "apex" (its sum)."""
    zeta = ops.parameter([-1, 2], np.float32, name="zeta")
    alpha = ops.parameter([-1, 3], np.float32, name="alpha")
    wide = ops.subtract(ops.matmul(zeta, ops.constant(LEFT), False, False), alpha)
    apex = ops.reduce_sum(wide, ops.constant(np.array([1])), False)
    model = openvino.Model([wide, apex], [zeta, alpha], "two")
    for port, name in zip((*model.inputs, *model.outputs), ("zeta", "alpha", "wide", "apex"), strict=True):
        port.tensor.set_names({name})
    openvino.save_model(model, str(path), compress_to_fp16=False)
    return str(path)


def two_result(zeta, alpha):
    wide = zeta.astype("f4") @ LEFT - alpha.astype("f4")
    return {"wide": wide, "apex": wide.sum(axis=1)}


def image(path, batch=-1, side=8, channels=3):
    """One input "image" (NCHW), one output: the mean of each channel."""
    x = ops.parameter([batch, channels, side, side], np.float32, name="image")
    model = openvino.Model([ops.reduce_mean(ops.multiply(x, ops.constant(np.float32(2))), [2, 3], False)], [x], "image")
    model.inputs[0].tensor.set_names({"image"})
    model.outputs[0].tensor.set_names({"means"})
    openvino.save_model(model, str(path), compress_to_fp16=False)
    return str(path)


def image_result(x):
    return 2 * x.astype("f4").mean(axis=(2, 3))
