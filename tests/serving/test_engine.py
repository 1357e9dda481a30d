"""The engine raises where OpenVINO's own short call returns the previous result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
import pytest

from orca.errors import DataError
from orca.serving.engine import Engine
from orca.store.values import Port, Signature
from tests.serving import models


def engine(tmp_path: Path, model: openvino.Model, signature: Signature) -> Engine:
    path = str(tmp_path / "model.xml")
    openvino.save_model(model, path, compress_to_fp16=False)
    return Engine(path, signature)


def signature(width: int, outputs: int) -> Signature:
    return Signature((Port("x", "float32", (-1, width)),), (Port("y", "float32", (-1, outputs)),))


@pytest.mark.parametrize("shape", [(1, 2), (1, 63), (1, 65), (1, 128), (64,), (2, 2)])
def test_a_wrong_shape_never_returns_the_previous_result(tmp_path: Path, shape: tuple[int, ...]):
    linear = engine(tmp_path, models.linear(1), signature(64, 10))
    x = np.random.default_rng(0).standard_normal((1, 64)).astype("f4")
    (before,) = linear.run([x])
    with pytest.raises(Exception, match="shape"):
        linear.run([np.ones(shape, "f4")])
    (after,) = linear.run([x])
    assert before.tobytes() == after.tobytes()


def test_a_failed_computation_never_returns_the_previous_result(tmp_path: Path):
    breakable = engine(
        tmp_path, models.breakable(), Signature((Port("x", "float32", (-1, 4)),), (Port("y", "float32", (-1, -1)),))
    )
    good, bad = np.ones((1, 4), "f4"), np.full((1, 4), 617, "f4")
    assert breakable.run([good])[0].tolist() == [[1] * 4]
    with pytest.raises(RuntimeError):
        breakable.run([bad])
    assert breakable.run([good * 2])[0].tolist() == [[2] * 4]


def test_a_signature_that_is_not_the_models_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"inputs of the IR are float32 \[\?, 64\], those of its signature"):
        engine(tmp_path, models.linear(1), signature(63, 10))


@pytest.mark.parametrize(("model", "joins"), [(models.linear, True), (models.rows_together, False)])
def test_only_independent_rows_are_joined(tmp_path: Path, model: object, joins: bool):
    width, outputs = (64, 10) if joins else (4, 4)
    assert engine(tmp_path, model(), signature(width, outputs)).warm() is joins  # type: ignore[operator]
