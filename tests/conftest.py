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
    parser.addoption("--part", choices=("core", "tensorflow", "mxnet"), help="run one part of the suite")
    parser.addoption("--mxnet", action="store_const", const="mxnet", dest="part", help="the same as --part mxnet")
    parser.addoption("--matrix", action="store_true", help="run every conformance check on every backend and runtime")


THREADED = ("store", "openvino", "accelerator", "graph", "tfpark", "tensorframes", "keras")
"""Words in the names of files whose tests start threads in this process, in the order in which they run."""


def part_of(name: str) -> str:
    """Return the part of the suite that a file belongs to."""
    # MXNet stops and restarts its threads at every fork, so its tests run in a process without the others.
    if "mxnet" in name:
        return "mxnet"
    return "tensorflow" if any(word in name for word in THREADED) else "core"


def is_chosen(path: Path, config: pytest.Config) -> bool:
    """Return whether a file belongs to the part that runs: the chosen one, or by default all but MXNet's."""
    part, chosen = part_of(path.name), config.getoption("--part")
    return part == chosen if chosen else part != "mxnet"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_test and not is_chosen(collection_path, config) else None


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Group the tests by runtime, so that each starts rarely; tests that start threads come last."""
    # pytest collects files that are named on the command line, whatever is to be ignored.
    items[:] = [item for item in items if is_chosen(item.path, config)]

    def place(item: pytest.Item) -> tuple[int, int]:
        # Once OpenVINO or TensorFlow has run in this process it has threads, which do not survive a fork.
        threads = max((place + 1 for place, word in enumerate(THREADED) if word in item.path.name), default=0)
        runtime = 2 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("ray") else 0
        return threads, runtime

    items.sort(key=place)
