"""Small OpenVINO models for the tests of the server, with results that are easy to compute by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino.opset13 as ops


def weights(version: int, features: int = 64, outputs: int = 10) -> np.ndarray[Any, Any]:
    """Return the weights of a version of the linear model."""
    return np.random.default_rng(version).standard_normal((features, outputs)).astype("f4")


def _model(inputs: list[Any], outputs: dict[str, Any]) -> openvino.Model:
    results = []
    for name, node in outputs.items():
        node.output(0).set_names({name})
        results.append(ops.result(node))
    return openvino.Model(results, inputs, "model")


def _input(name: str, shape: list[int], dtype: Any = np.float32) -> Any:
    node = ops.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node


def linear(version: int = 1, features: int = 64, outputs: int = 10) -> openvino.Model:
    """Return y = x W."""
    x = _input("x", [-1, features])
    return _model([x], {"y": ops.matmul(x, ops.constant(weights(version, features, outputs)), False, False)})


def wide() -> openvino.Model:
    """Return x W, with two large products in between that cancel out: slow enough to let requests wait."""
    x = _input("x", [-1, 64])
    up = ops.matmul(x, ops.constant(np.tile(np.eye(64, dtype="f4"), (1, 40))), False, False)
    middle = ops.matmul(up, ops.constant(np.eye(2560, dtype="f4")), False, False)
    down = ops.matmul(middle, ops.constant(np.tile(weights(3), (40, 1)) / 40), False, False)
    return _model([x], {"y": down})


def constant(number: float) -> openvino.Model:
    """Return y = 0 x + number: the version is visible in each result."""
    x = _input("x", [-1, 4])
    total = ops.reduce_sum(x, np.array([1]), True)
    return _model([x], {"y": ops.add(ops.multiply(total, np.float32(0)), np.float32(number))})


def image() -> openvino.Model:
    """Return the mean color of 192 x 192 images, times weights."""
    x = _input("x", [-1, 192, 192, 3])
    mean = ops.reduce_mean(x, np.array([1, 2]), False)
    return _model([x], {"y": ops.matmul(mean, ops.constant(weights(1, 3, 5)), False, False)})


def two_inputs() -> openvino.Model:
    """Return a + b and a - b, where b are integers."""
    a, b = _input("a", [-1, 3]), _input("b", [-1, 3], np.int32)
    number = ops.convert(b, "f32")
    return _model([a, b], {"sum": ops.add(a, number), "difference": ops.subtract(a, number)})


def logarithm() -> openvino.Model:
    """Return log(x): NaN below 0, minus infinity at 0."""
    x = _input("x", [-1, 3])
    return _model([x], {"y": ops.log(x)})


def slow() -> openvino.Model:
    """Return x times a matrix, many times: about half a second for a row."""
    x = _input("x", [1, 1500])
    matrix = ops.constant((np.eye(1500) * 0.999).astype("f4"))
    steps = _input("steps", [], np.int32)
    body_x = ops.parameter([1, 1500], np.float32)
    body = openvino.Model([ops.matmul(body_x, matrix, False, False), ops.constant(np.array(True))], [body_x], "body")
    loop = ops.loop(steps, ops.constant(np.array(True)))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(body_x, x.output(0), body.results[0].output(0))
    y = loop.get_iter_value(body.results[0].output(0), -1)
    y.set_names({"y"})
    return openvino.Model([ops.result(y)], [x, steps], "slow")


def breakable() -> openvino.Model:
    """Return x; numbers above 100 make the model fail, as its rows then do not fit the shape it computes."""
    x = _input("x", [-1, 4])
    extra = ops.convert(ops.divide(ops.reduce_max(x, np.array([0, 1]), False), np.float32(100)), "i64")
    width = ops.unsqueeze(ops.add(extra, np.int64(4)), np.int64(0))
    return _model([x], {"y": ops.reshape(x, ops.concat([ops.constant(np.array([-1], "i8")), width], 0), False)})


def rows_together() -> openvino.Model:
    """Return each row minus the mean of all rows: rows must not be joined."""
    x = _input("x", [-1, 4])
    return _model([x], {"y": ops.subtract(x, ops.reduce_mean(x, np.array([0]), True))})


def mlp() -> openvino.Model:
    """Return a network 784-1024-1024-10."""
    x = _input("x", [-1, 784])
    node = x
    for seed, (rows, columns) in enumerate([(784, 1024), (1024, 1024), (1024, 10)]):
        node = ops.matmul(node, ops.constant(weights(seed, rows, columns) / rows**0.5), False, False)
        node = ops.relu(node) if columns > 10 else node
    return _model([x], {"y": node})
