"""Writers of a store that are killed at every step, stopped, or run at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.programs import ROOT

SQLITE = "a folder with SQLite"
POSTGRES = pytest.param("a folder with PostgreSQL", marks=pytest.mark.slow)
BUCKET = pytest.param("a bucket with PostgreSQL", marks=pytest.mark.slow)


def scenario(name: str, path: str, db: str, *numbers: int, count: Path | None = None) -> dict[str, Any]:
    """Run a scenario of `tests.store.writers` in a process of its own; return what it has seen."""
    command = [sys.executable, "-m", "tests.store.writers", name, path, db, *map(str, numbers)]
    command += [str(count)] if count is not None else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=ROOT, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, int]:
    """The path and database of a new store, and the distance between two steps at which writers are killed."""
    kind = request.param
    if kind == SQLITE:
        return str(tmp_path / "store"), "", 1
    url = request.getfixturevalue("database")
    name = f"store_{uuid.uuid4().hex[:12]}"
    created(url, name)
    url = url.replace("/postgres?", f"/{name}?")
    # Each process takes a second to connect to the bucket.
    return (str(tmp_path / "store"), url, 5) if "folder" in kind else (request.getfixturevalue("bucket"), url, 30)


def created(url: str, name: str) -> None:
    """Create a database on the server."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()


@pytest.mark.parametrize("place", [SQLITE, POSTGRES, BUCKET], indirect=True)
def test_a_put_killed_at_any_step_leaves_the_old_or_the_whole_new_version(place, tmp_path):
    path, db, every = place
    seen = scenario("killed_model", path, db, every, count=tmp_path / "count")
    print(seen)
    assert seen["steps"] > 100
    assert seen["old"] + seen["new"] >= len(range(1, seen["steps"] + 1, every))
    assert seen["old"] > 3
    assert seen["new"] >= 1
    assert seen["leftovers"] > 3


@pytest.mark.parametrize("place", [SQLITE, POSTGRES], indirect=True)
def test_an_append_or_replacement_killed_at_any_step_leaves_the_old_or_the_new_rows(place, tmp_path):
    path, db, every = place
    seen = scenario("killed_dataset", path, db, every + 2, count=tmp_path / "count")
    print(seen)
    assert seen["old"] > 5
    assert seen["new"] > 1


@pytest.mark.parametrize("place", [SQLITE, BUCKET], indirect=True)
def test_a_sweep_leaves_the_files_of_running_puts_alone(place):
    path, db, _ = place
    assert scenario("stopped", path, db) == {"removed": [], "codes": [0, 0, 0], "problems": [], "left": []}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", [SQLITE, POSTGRES], indirect=True)
def test_versions_of_four_writers_have_no_gap_while_others_read_and_move_aliases(place):
    path, db, every = place
    puts = 40 if every == 1 else 10
    seen = scenario("race", path, db, 4, puts)
    assert seen["codes"] == [0] * 8
    assert seen["numbers"] == list(range(1, 4 * puts + 1))
    assert seen["by_writer"] == [puts] * 4
    assert seen["changes"] == 4 * puts + 2 * puts
    assert seen["problems"] == seen["left"] == []


@pytest.mark.parametrize("place", [SQLITE, POSTGRES], indirect=True)
def test_eight_processes_may_open_a_new_store_at_once(place):
    path, db, _ = place
    assert scenario("first", path, db, 8) == {"codes": [0] * 8, "tokens": 8}
