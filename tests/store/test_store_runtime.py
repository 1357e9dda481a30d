"""Calls on the runtime of the context: handles, data by name, further training, cancelling."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.errors import ArgumentError, NotPicklableError, NotStoredError, UnknownArgumentError, WorkerError
from orca.store.handles import start
from tests.backends.openvino_models import dense_result

X = np.random.default_rng(0).normal(size=(9, 6)).astype("f4")


def linear(width: int = 6) -> Estimator:
    return Estimator.from_torch(
        model=nn.Linear(width, 1), optimizer=torch.optim.SGD, loss=nn.MSELoss(), config={"lr": 0.05}, seed=1
    )


def test_predictions_come_in_the_kind_of_the_data_on_every_runtime(om, ir, context):
    om.models.put(ir, "net")
    model = om.runtime.model("net", workers=2)
    handle = model.predict(X)
    np.testing.assert_allclose(np.asarray(handle), dense_result(X), rtol=1e-5)
    assert handle.done
    frame = pd.DataFrame({"features": list(X)})
    result = model.predict(frame).get(timeout=100)
    np.testing.assert_allclose(np.stack(result["prediction"]), dense_result(X), rtol=1e-5)
    om.datasets.put({"x": X}, "rows")
    model.predict("rows", save_as="outputs").get(timeout=100)
    np.testing.assert_allclose(om.datasets.get("outputs"), dense_result(X), rtol=1e-5)


def test_an_estimator_receives_the_weights_and_trains_them_further(om, local):
    om.models.put(nn.Linear(6, 1), "net", example=X)
    om.datasets.put(X, "rows")
    om.datasets.put(X.sum(axis=1, keepdims=True), "labels")
    call = om.runtime.model("net", into=linear())
    version = call.fit("rows", "labels", epochs=40, batch_size=9, tag="trained").get(timeout=100)
    assert (str(version), version.aliases, version.manifest["parent"]) == ("net@2", ("trained",), "net@1")
    assert version.manifest["data"] == ["rows", "labels"]
    assert version.manifest["history"][-1]["loss"] < version.manifest["history"][0]["loss"]
    scores = om.runtime.model("net@trained", into=linear()).evaluate("rows", "labels").get(timeout=100)
    assert scores["loss"] == pytest.approx(version.manifest["history"][-1]["loss"], rel=0.5)
    with pytest.raises(ArgumentError, match=r"fit: net@2 is a torch model.*runtime.model\(name, into=estimator\)"):
        om.runtime.model("net").fit(X)


def test_a_function_runs_on_a_worker_of_every_runtime(om, context):
    def where(add):
        import os

        return os.getpid() + add

    import os

    assert om.runtime.run(where, 0).get(timeout=100) != os.getpid()

    def make():
        import torch

        return torch.nn.Linear(6, 2)

    version = om.runtime.run(make, save_as="made", example=X).get(timeout=150)
    assert version.signature.outputs[0].shape == (-1, 2)
    assert np.asarray(om.runtime.model("made").predict(X)).shape == (9, 2)


def test_mistakes_are_reported_by_the_call_itself(om, ir, local):
    om.models.put(ir, "net")
    model = om.runtime.model("net")
    with pytest.raises(NotStoredError, match=r"no such version"):
        om.runtime.model("net@2")
    with pytest.raises(NotStoredError, match=r"no dataset of this name"):
        model.predict("missing")
    with pytest.raises(UnknownArgumentError, match=r"batchsize=. Did you mean 'batch_size'"):
        model.predict(X, batchsize=3)
    with pytest.raises(ArgumentError, match=r"into= is a Linear; expected an Estimator"):
        om.runtime.model("net", into=nn.Linear(1, 1))
    lock = threading.Lock()
    with pytest.raises(NotPicklableError, match=r"lock"):
        om.runtime.run(lambda: lock)
    with pytest.raises(ArgumentError, match=r"cannot be called with these arguments"):
        om.runtime.run(lambda: 1, 5)
    with pytest.raises(WorkerError, match=r"ZeroDivisionError"):
        om.runtime.run(lambda: 1 / 0).get(timeout=100)


def test_a_handle_waits_no_longer_than_its_timeout():
    release = threading.Event()
    handle = start(lambda task: release.wait(30) and 5, "call")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"timeout=0.05: call still runs"):
        handle.get(timeout=0.05)
    assert time.monotonic() - began < 5
    assert not handle.done
    release.set()
    assert handle.get(timeout=10) == 5
    assert not handle.cancel()


def test_a_cancelled_fit_stores_nothing_and_ends(om, local):
    om.models.put(nn.Linear(6, 1), "net", example=X)
    threads = threading.active_count()
    handle = om.runtime.model("net", into=linear()).fit(X, X[:, :1], epochs=100_000, batch_size=9)
    time.sleep(1)
    assert handle.cancel()
    with pytest.raises(CancelledError):
        handle.get(timeout=10)
    assert handle.done
    end = time.monotonic() + 60
    while any(thread.name.startswith("orca-fit") for thread in threading.enumerate()):
        assert time.monotonic() < end, f"{threading.active_count()} threads, {threads} before"
        time.sleep(0.05)
    assert [version.number for version in om.models.versions("net")] == [1]
    assert om.sweep() == []
