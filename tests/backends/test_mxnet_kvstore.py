"""MXNet's KVStore: large arrays on several servers, asynchronous updates, and a Horovod that is missing."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from orca import create_config
from orca.context import Context
from orca.errors import MissingPackageError
from orca.testing.cases import batches
from tests.conformance.models import make_data

pytest.importorskip("mxnet")

from tests.conformance.mxnet_cases import named, reference
from tests.conformance.mxnet_models import SEED, estimator


def test_mxnet_splits_large_arrays_over_the_servers(local: Context, monkeypatch):
    # With a bound of 30 elements, the arrays of this small model are split.
    monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", "30")
    x, y = make_data(97)
    expected = reference(batches(x, y, epochs=2, batch_size=16, seed=SEED), SEED)
    for kind in ("dist_sync", "dist_device_sync"):
        est = estimator(2, 2, kvstore=kind)
        est.fit(x, y, epochs=2, batch_size=16)
        for name, value in named(est.get_model()).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=f"{kind} {name}")


def test_mxnet_dist_async_converges_and_keeps_its_optimizer(local: Context, tmp_path):
    x, y = make_data(400)
    y = (x[:, 0] + x[:, 1] > 0).astype("i8")
    config = create_config("adam", {"learning_rate": 0.02}, log_interval=0)
    est = estimator(2, 2, kvstore="dist_async", config=config)
    history = est.fit(x, y, epochs=6, batch_size=16)
    assert history["loss"][-1] < history["loss"][0]
    assert est.evaluate(x, y)["accuracy"] > 0.9
    est.save_checkpoint(str(tmp_path / "saved"))
    # Six epochs of 25 steps, and both workers push once per step.
    counts = est._learned.state["optimizer"]["counts"]
    assert set(counts) == {"0", "1", "2", "3"}
    assert all(count == 300 for count in counts.values())
    moments = est._learned.state["optimizer"]["states"]
    assert [np.size(moments[key][0]) for key in sorted(moments)] == [48, 8, 16, 2]
    other = estimator(2, 1, kvstore="dist_async", config=config).load_checkpoint(str(tmp_path / "saved"))
    other.fit(x, y, epochs=1, batch_size=16)
    assert set(other._learned.state["optimizer"]["counts"].values()) == {350}


def test_a_missing_horovod_is_reported_before_the_launch(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="needs a Horovod that was built with MXNet"):
        estimator(2, backend="horovod", num_servers=None)
