"""The backends of TensorFlow graphs as cases of the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.testing import BackendCase
from tests.conformance.graph_models import sgd, train_on, two_classes, two_inputs


def case(backend: str, **flags: Any) -> BackendCase:
    """A case for a backend."""

    def make(workers: int, **more: Any) -> Any:
        return two_classes().estimator(sgd(), workers, backend=backend, **more)

    def noisy(workers: int, **more: Any) -> Any:
        graph = two_classes(dropout=0.3)
        return graph.estimator(v1.train.AdamOptimizer(0.01), workers, backend=backend, **more)

    return BackendCase(
        f"graph.{backend}",
        make,
        weights=lambda est: est.get_state_dict(),
        reference=lambda batches, seed: train_on(batches, two_classes(), sgd()),
        outputs=lambda est, x: fetch(est, "outputs", x),
        scores=lambda est, x, y: {"loss": float(fetch(est, "loss", x, y))},
        noisy=noisy,
        several=lambda workers: two_inputs().estimator(
            v1.train.GradientDescentOptimizer(0.01), workers, backend=backend, seed=0
        ),
        sample_weights=False,
        **flags,
    )


def fetch(est: Any, name: str, x: Any, y: Any = None) -> Any:
    """Compute a tensor in the estimator's own session."""
    params = est.get_params()
    feeds = {params["inputs"].name: x} | ({} if y is None else {params["labels"].name: y})
    return np.asarray(est.sess.run(params[name].name, feeds))


PLAIN = [case("multiworker"), case("horovod")]
VARIANTS: dict[BackendCase, list[str]] = {}
