"""Converting a model starts no process for usage reports."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from orca import Estimator


def test_converting_a_model_forks_nothing(monkeypatch):
    pytest.importorskip("openvino")
    import torch

    started: list[object] = []
    monkeypatch.setattr(multiprocessing.Process, "start", lambda self: started.append(self))
    est = Estimator.from_openvino(model=torch.nn.Linear(3, 2), example=np.zeros((2, 3), "f4"))
    assert est.predict(np.ones((5, 3), "f4")).shape == (5, 2)
    assert not started
