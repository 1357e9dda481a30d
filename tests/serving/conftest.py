"""One store and one server for most tests of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("openvino")
pytest.importorskip("uvicorn")

from orca.store import Store
from tests.serving import models
from tests.serving.servers import Server

LIMITS = ("--max-body", "2m", "--timeout", "3", "--queue", "8", "--max-pixels", "1000000", "--poll", "0.2")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    om = Store(tmp_path_factory.mktemp("served") / "store")
    om.models.put(models.linear(1), "linear", tag="production")
    om.models.put(models.linear(2), "linear")
    om.models.put(models.wide(), "wide")
    om.models.put(models.image(), "flowers/image")
    om.models.put(models.two_inputs(), "pair")
    om.models.put(models.logarithm(), "log")
    om.models.put(models.rows_together(), "together")
    om.models.put(models.slow(), "slow")
    om.models.put(models.breakable(), "breakable")
    x = np.random.default_rng(5).standard_normal((7, 64)).astype("f4")
    om.datasets.put(x, "rows")
    om.datasets.put(pd.DataFrame({"a": list(np.ones((4, 3))), "b": list(np.arange(12).reshape(4, 3))}), "columns")
    om.datasets.put({"a": np.ones((2, 3), "f4"), "b": np.full((2, 3), 2**40)}, "large")
    return om


@pytest.fixture(scope="session")
def server(store: Store) -> Iterator[Server]:
    """A server with small limits."""
    server = Server(store.path, *LIMITS)
    yield server
    assert server.stop() == 0


@pytest.fixture
def folder(store: Store) -> Path:
    return Path(store.path)
