"""The Keras backends as cases of the conformance checks."""

from __future__ import annotations

from typing import Any

from orca import Estimator
from orca.testing import BackendCase
from tests.conformance.keras_models import model_creator, noisy_creator, train_on, two_creator


def case(backend: str, **flags: Any) -> BackendCase:
    """A case for a backend."""

    def make(workers, **more):
        plain = {"model_creator": model_creator, "config": {}}
        return Estimator.from_keras(backend=backend, workers=workers, **{**plain, **more})

    return BackendCase(
        f"keras.{backend}",
        make,
        weights=lambda est: named(est.get_model()),
        reference=reference,
        outputs=lambda est, x: est.get_model().predict(x, verbose=0),
        scores=lambda est, x, y: est.get_model().evaluate(x, y, batch_size=len(x), verbose=0, return_dict=True),
        noisy=lambda workers, **more: make(workers, model_creator=noisy_creator, **more),
        several=lambda workers: make(workers, model_creator=two_creator, seed=0),
        labels="float32",
        metrics=("f1",),
        exact_resume=False,
        **flags,
    )


def reference(batches, seed):
    return named(train_on(batches, seed))


def named(model: Any) -> dict[str, Any]:
    """The weights in their order: names depend on how many layers a process has made before."""
    return {str(place): value for place, value in enumerate(model.get_weights())}


PLAIN = [case("multiworker"), case("horovod"), case("parameter_server"), case("mirrored", processes=False)]
VARIANTS: dict[BackendCase, list[str]] = {}
