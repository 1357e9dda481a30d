"""The request queue of OpenVINO: concurrent threads and iterators, recovery from errors, order of results."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino
import openvino.opset13 as ops
import pytest

from orca import Estimator
from orca.backends.openvino.queue import Queue
from orca.backends.openvino.replica import OpenvinoReplica
from orca.context import Context
from orca.errors import DataError
from tests.backends.openvino_models import WEIGHTS, dense, dense_result

x = np.random.default_rng(0).normal(size=(4000, 6))
expected = dense_result(x)


def open_axes(path):
    """Adds six numbers to rows of any length, so that a wrong length fails only in the computation."""
    rows = ops.parameter([-1, -1], np.float32, name="features")
    model = openvino.Model([ops.add(rows, ops.constant(WEIGHTS[:, :1].T))], [rows], "open")
    openvino.save_model(model, str(path), compress_to_fp16=False)
    return str(path)


@pytest.mark.timeout(60)
def test_threads_predict_concurrently(local: Context, tmp_path):
    est = Estimator.from_openvino(model_path=dense(tmp_path / "dense.xml"))
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: est.predict(x, batch_size=8), range(16)))
    for output in outputs:
        np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.timeout(60)
def test_a_thread_can_abandon_unfinished_predictions(local: Context, tmp_path):
    replica = OpenvinoReplica(Estimator.from_openvino(model_path=dense(tmp_path / "dense.xml")).spec, 1)
    batches = np.split(x, 500)
    one, two = replica.predict_stream(iter(batches)), replica.predict_stream(iter(batches))
    for index in range(20):
        for stream in (one, two):
            np.testing.assert_allclose(next(stream), expected[8 * index : 8 * index + 8], atol=1e-5)
    one.close()
    np.testing.assert_allclose(np.concatenate([*two]), expected[160:], atol=1e-5)
    for _ in range(20):
        next(replica.predict_stream(iter(batches)))
    np.testing.assert_allclose(np.concatenate([*replica.predict_stream(iter(batches))]), expected, atol=1e-5)


@pytest.mark.timeout(60)
def test_a_failed_request_does_not_affect_later_ones(local: Context, tmp_path):
    est = Estimator.from_openvino(model_path=open_axes(tmp_path / "open.xml"))
    for _ in range(3):
        with pytest.raises(DataError, match="OpenVINO cannot run"):
            est.predict(x[:100, :5], batch_size=8)
        np.testing.assert_allclose(est.predict(x, batch_size=64), x + WEIGHTS[:, 0], atol=1e-5)


def test_an_output_with_a_different_number_of_rows_is_refused(local: Context, tmp_path):
    image = ops.parameter([1, 3, 4, 4], np.float32, name="image")
    boxes = ops.reshape(ops.tile(image, ops.constant(np.array([5, 1, 1, 1]))), ops.constant(np.array([48, 5])), False)
    openvino.save_model(openvino.Model([boxes], [image], "boxes"), str(tmp_path / "boxes.xml"))
    images = np.random.default_rng(0).normal(size=(3, 3, 4, 4))
    est = Estimator.from_openvino(model_path=tmp_path / "boxes.xml")
    with pytest.raises(DataError, match=r"gave shape \[48, 5\] for 1 row of input.*data\[:, None\]"):
        est.predict(images)
    assert est.predict(images[:, None]).shape == (3, 48, 5)


def test_results_keep_the_order_of_many_more_batches_than_requests(local: Context, tmp_path):
    rows = np.random.default_rng(1).normal(size=(211, 6))
    est = Estimator.from_openvino(model_path=dense(tmp_path / "dense.xml"), config={"num_requests": 3})
    for size in (1, 7, 300):
        np.testing.assert_allclose(est.predict(rows, batch_size=size), dense_result(rows), atol=1e-5)


def in_place(path):
    """A model whose operations could all overwrite their inputs."""
    rows = ops.parameter([-1, 6], np.float32, name="features")
    halves = ops.split(ops.relu(rows), 1, 2).outputs()
    joined = ops.concat([halves[1], ops.sigmoid(halves[0])], 1)
    outputs = [ops.add(joined, ops.constant(np.float32(1))), ops.reshape(rows, ops.constant([0, 2, 3]), True)]
    openvino.save_model(openvino.Model(outputs, [rows], "in_place"), str(path), compress_to_fp16=False)
    return str(path)


def test_read_only_rows_are_read_in_place(local: Context, tmp_path):
    rows = np.random.default_rng(2).normal(size=(1000, 6)).astype("f4")
    np.save(tmp_path / "rows.npy", rows)
    # A write to these pages would kill the process.
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    est = Estimator.from_openvino(model_path=in_place(tmp_path / "in_place.xml"))
    for size in (100, 1000):
        first, second = est.predict(mapped, batch_size=size).values()
        low = 1 / (1 + np.exp(-np.maximum(rows[:, :3], 0)))
        np.testing.assert_allclose(first, np.hstack([np.maximum(rows[:, 3:], 0), low]) + 1, atol=1e-5)
        np.testing.assert_array_equal(second, rows.reshape(-1, 2, 3))
    np.testing.assert_array_equal(mapped, rows)


def test_rows_are_released_once_they_are_computed(tmp_path):
    compiled = openvino.Core().compile_model(dense(tmp_path / "dense.xml"), "CPU")
    queue = Queue(compiled)
    batches = [x[low : low + 100].astype("f4") for low in range(0, 1000, 100)]
    references = [weakref.ref(batch) for batch in batches]
    assert len(list(queue.run([batches.pop()] for _ in range(10)))) == 10
    assert not any(reference() is not None for reference in references)
