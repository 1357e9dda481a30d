"""Make the virtual environment .venv: what the demo needs, or everything that the tests need."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

from build_horovod import ensure_horovod
from java import ensure_java
from steps import CONSTRAINTS, PYTHON, ROOT, VENV, StepFailed, exit_on_failure, pinned, pip_install, run, say

MINIMUM_PYTHON = (3, 11)
STAMP = VENV / "environment.json"
UNFINISHED = VENV / "unfinished"
GENERATED = (
    *(".venv", "build", "dist", "docs/_build", "*.egg-info"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"),
    *("spark-warehouse", "metastore_db", "derby.log"),
)


def fingerprint() -> str:
    """A hash of all that decides what is installed: the requirements, the pins and these tools."""
    files = [ROOT / "pyproject.toml", CONSTRAINTS, *sorted(Path(__file__).parent.glob("*.py"))]
    parts = [path.name.encode() + b"\0" + path.read_bytes() for path in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def finished(kind: str) -> bool:
    """Whether .venv already holds this kind of environment (the full one serves the demo too)."""
    stamp = _read_stamp()
    return stamp.get("fingerprint") == fingerprint() and stamp.get("kind") in (kind, "full")


def usable() -> bool:
    """Whether .venv can be installed into; an interrupted, broken or moved one cannot."""
    moved = _read_stamp().get("root", str(ROOT)) != str(ROOT)
    return PYTHON.exists() and not UNFINISHED.exists() and not moved


def _read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def create() -> None:
    """Make an empty .venv, in place of a broken one if there is one."""
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        say("The .venv that is there is incomplete; it is made anew.")
        shutil.rmtree(VENV)
    VENV.mkdir()
    UNFINISHED.touch()
    run("Virtual environment", [sys.executable, "-m", "venv", VENV])


def install(kind: str) -> None:
    """Install one kind of environment into .venv."""
    pip_install("pip and setuptools", "--upgrade", "pip", "setuptools")
    # First and by its exact version, so that nothing else can choose a build with several GB of CUDA.
    pip_install(pinned("torch"), pinned("torch"))
    if kind == "demo":
        pip_install("Orca and what the demo needs", "-e", ".[demo]")
        return
    pip_install("Orca, all frameworks, test and documentation tools", "-e", ".[dev,docs]")
    # Without its requirements: it declares numpy<2, and orca makes it run on numpy 2.
    pip_install(pinned("mxnet"), "--no-deps", pinned("mxnet"))
    ensure_horovod()


def ensure(kind: str) -> None:
    """Have an environment of this kind; at once if it is already there."""
    started = time.monotonic()
    ready = usable() and finished(kind)
    if not usable():
        create()
    if kind == "full":
        ensure_java()  # Before the long part; and each time, because it is not in .venv.
    if ready:
        return
    STAMP.unlink(missing_ok=True)
    UNFINISHED.touch()
    try:
        install(kind)
    except StepFailed:
        UNFINISHED.unlink(missing_ok=True)  # pip undoes what fails: the next call goes on from here.
        raise
    STAMP.write_text(json.dumps({"kind": kind, "root": str(ROOT), "fingerprint": fingerprint()}))
    UNFINISHED.unlink()
    say(f"The {kind} environment is ready after {time.monotonic() - started:.0f} s.")


def clean() -> None:
    """Remove what was made in this tree: .venv, builds and caches."""
    for pattern in GENERATED:
        for path in ROOT.glob(pattern):
            _remove(path)
    for folder in ROOT.iterdir():
        # A link leads to a folder that is met under its own name, or out of the tree.
        if folder.is_dir() and not folder.is_symlink() and folder.name != ".git":
            for cache in list(folder.rglob("__pycache__")):
                _remove(cache)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def main() -> None:
    """Read the command line and do what it says."""
    if sys.version_info < MINIMUM_PYTHON:
        needed, found = (".".join(map(str, version[:2])) for version in (MINIMUM_PYTHON, sys.version_info))
        raise StepFailed(
            f"Orca needs Python {needed} or later and {sys.executable} is {found}: "
            "name a newer one, such as `make PYTHON=python3.12 test`."
        )
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("demo", "full", "clean"), help="what to make; clean removes it")
    kind = parser.parse_args().kind
    if kind == "clean":
        clean()
    else:
        ensure(kind)


if __name__ == "__main__":
    exit_on_failure(main)
