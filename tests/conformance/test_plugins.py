"""A backend of another package, found by its entry point, through the conformance checks."""

from __future__ import annotations

import numpy as np
import pytest

from orca import Estimator
from orca.backends.registry import find
from orca.errors import ArgumentError
from orca.runtimes.registry import names
from orca.testing import BackendCase

WIDTH = {"features": 6, "classes": 2}


def reference(batches, seed):
    weights = np.random.default_rng(seed).normal(size=(6, 2))
    for x, y in batches:
        weights = weights - 0.1 * x.T @ (outputs_of(weights, x) - np.eye(2)[y]) / len(x)
    return {"weights": weights}


def outputs_of(weights, x):
    scores = np.exp(x @ weights)
    return scores / scores.sum(axis=1, keepdims=True)


PLAIN = [
    BackendCase(
        "softmax.gathered",
        lambda workers, **more: Estimator.from_backend("softmax.gathered", workers=workers, **WIDTH, **more),
        weights=lambda est: {"weights": est.get_model()},
        reference=reference,
        outputs=lambda est, x: outputs_of(est.get_model(), x),
        sample_weights=False,
    )
]
VARIANTS: dict[BackendCase, list[str]] = {}
MAIN = None


def test_backend_of_another_package_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.title, runtime=cell.runtime)


def test_plugins_are_found_by_their_entry_points():
    assert find("softmax.gathered").framework.name == "softmax"
    assert "subprocesses" in names()
    with pytest.raises(ArgumentError, match="softmax"):
        Estimator.from_backend("softmax.gatherd", **WIDTH)
    with pytest.raises(ArgumentError, match="classes=1"):
        Estimator.from_backend("softmax.gathered", features=6, classes=1)
    with pytest.raises(ArgumentError, match="weighted rows"):
        est = Estimator.from_backend("softmax.gathered", **WIDTH)
        est.fit(np.ones((4, 6), "f4"), np.array([0, 1, 0, 1]), sample_weight=np.ones(4))
