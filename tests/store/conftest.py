"""Fixtures for tests of a store: an empty one, a small model file, a database server and a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orca import Store
from tests.backends.openvino_models import dense
from tests.store import servers


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key for signatures that is not the user's."""
    path = tmp_path / "keys" / "store.key"
    monkeypatch.setenv("ORCA_KEY_FILE", str(path))
    return path


@pytest.fixture
def om(tmp_path: Path) -> Store:
    """An empty store in a folder."""
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def ir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of 6 numbers in and 5 out."""
    return dense(tmp_path_factory.mktemp("ir") / "dense.xml")


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """The URL of a database on a PostgreSQL server of these tests."""
    with servers.postgres() as url:
        yield url


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URL in an S3 bucket of these tests."""
    with servers.bucket(monkeypatch) as url:
        yield url
