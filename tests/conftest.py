"""Fixtures for the whole suite: Ray and Spark start once per session, Orca only joins them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# One temporary folder for all processes of the suite, so that leftover files can be counted. Its name is short
# because Ray creates sockets in it, whose paths are limited in length.
FOLDER = tempfile.mkdtemp(prefix="ot", dir="/tmp")
os.environ["TMPDIR"] = FOLDER
tempfile.tempdir = None
os.environ["ORCA_CACHE_DIR"] = os.path.join(FOLDER, "cache")

from orca.context import Context, init_orca_context, stop_orca_context
from orca.runtimes import spark_settings

SLOTS = 6
"""Slots of every runtime in the tests; intentionally more than the cores of a small machine."""


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        sql.SparkSession.builder.master(f"local[{SLOTS}]")
        .appName("orca tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config(map=spark_settings())
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


RUNTIMES = [
    "local",
    pytest.param("ray", marks=pytest.mark.ray),
    pytest.param("spark", marks=pytest.mark.spark),
]


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """Each runtime in turn; Ray and Spark are started."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    elif request.param == "spark":
        request.getfixturevalue("spark_session")
    return str(request.param)


@pytest.fixture
def context(runtime: str) -> Iterator[Context]:
    """A context on each runtime. Ray and Spark keep running; so do the gangs on Ray, where they start slowly."""
    context = init_orca_context(runtime=runtime, cores=SLOTS)
    yield context
    if runtime != "ray":
        context.stop_gangs()


@pytest.fixture
def local() -> Iterator[Context]:
    """A local context."""
    context = init_orca_context(cores=SLOTS)
    yield context
    context.stop_gangs()


@pytest.fixture(autouse=True, scope="session")
def stop_everything() -> Iterator[None]:
    yield
    stop_orca_context()
    shutil.rmtree(FOLDER, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mxnet", action="store_true", help="run only the tests of MXNet")
    parser.addoption("--matrix", action="store_true", help="run every conformance check on every backend and runtime")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # MXNet stops and restarts its threads at every fork, so its tests run in a process without the others.
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if ("mxnet" in collection_path.name) != config.getoption("--mxnet") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests by runtime, so that each starts rarely; tests that start threads come last."""
    last = ("openvino", "accelerator", "graph", "tfpark", "keras")

    def place(item: pytest.Item) -> tuple[int, int]:
        # Once OpenVINO or TensorFlow has run in this process it has threads, which do not survive a fork.
        threads = max((last.index(word) + 1 for word in last if word in item.path.name), default=0)
        runtime = 2 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("ray") else 0
        return threads, runtime

    items.sort(key=place)
