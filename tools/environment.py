"""Create the virtual environment .venv, for the demo or for all tests."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

from browser import ensure_chromium
from build_horovod import ensure_horovod
from java import ensure_java
from network import ensure_iproute2
from postgres import ensure_postgres
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
    """Hash everything that determines what is installed: the requirements, the pins and these tools."""
    files = [
        ROOT / "pyproject.toml",
        ROOT / "tests/plugins/pyproject.toml",
        CONSTRAINTS,
        *sorted(Path(__file__).parent.glob("*.py")),
    ]
    parts = [path.name.encode() + b"\0" + path.read_bytes() for path in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def finished(kind: str) -> bool:
    """Return whether .venv already is this kind of environment (the full one includes the demo)."""
    stamp = _read_stamp()
    return stamp.get("fingerprint") == fingerprint() and stamp.get("kind") in (kind, "full")


def usable() -> bool:
    """Return whether packages can be installed into .venv: not if it was interrupted, broken or moved."""
    moved = _read_stamp().get("root", str(ROOT)) != str(ROOT)
    return PYTHON.exists() and not UNFINISHED.exists() and not moved


def _read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def create() -> None:
    """Create an empty .venv, replacing a broken one."""
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        say("The existing .venv is incomplete; it is recreated.")
        shutil.rmtree(VENV)
    VENV.mkdir()
    UNFINISHED.touch()
    run("Virtual environment", [sys.executable, "-m", "venv", VENV])


def install(kind: str) -> None:
    """Install one kind of environment into .venv."""
    pip_install("pip and setuptools", "--upgrade", "pip", "setuptools")
    # First and pinned, so that no other package selects a build with several GB of CUDA.
    pip_install(pinned("torch"), pinned("torch"))
    if kind == "demo":
        pip_install("Orca and the demo's dependencies", "-e", ".[demo]")
        return
    pip_install("Orca, all frameworks, test and documentation tools", "-e", ".[dev,docs]")
    pip_install("Plugins for the tests", "--no-deps", "-e", "tests/plugins")
    # Without dependencies: it requires numpy<2, but runs on numpy 2 with orca.backends.mxnet.numpy_compat.
    pip_install(pinned("mxnet"), "--no-deps", pinned("mxnet"))
    ensure_horovod()


def ensure(kind: str) -> None:
    """Create or complete an environment of this kind; returns at once if it is up to date."""
    started = time.monotonic()
    ready = usable() and finished(kind)
    if not usable():
        create()
    if kind == "full":
        ensure_java()  # Before the slow steps; and every time, as Java is not part of .venv.
        ensure_iproute2()
        ensure_postgres()
        ensure_chromium()
    if ready:
        return
    STAMP.unlink(missing_ok=True)
    UNFINISHED.touch()
    try:
        install(kind)
    except StepFailed:
        UNFINISHED.unlink(missing_ok=True)  # pip rolls back what fails: the next call continues from here.
        raise
    STAMP.write_text(json.dumps({"kind": kind, "root": str(ROOT), "fingerprint": fingerprint()}))
    UNFINISHED.unlink()
    say(f"The {kind} environment is ready after {time.monotonic() - started:.0f} s.")


def clean() -> None:
    """Remove generated files: .venv, builds and caches."""
    for pattern in GENERATED:
        for path in ROOT.glob(pattern):
            _remove(path)
    for folder in ROOT.iterdir():
        # The target of a link is visited under its own name, or is outside of this tree.
        if folder.is_dir() and not folder.is_symlink() and folder.name != ".git":
            for cache in list(folder.rglob("__pycache__")):
                _remove(cache)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def main() -> None:
    """Run the command line."""
    if sys.version_info < MINIMUM_PYTHON:
        needed, current = (".".join(map(str, version[:2])) for version in (MINIMUM_PYTHON, sys.version_info))
        raise StepFailed(
            f"Orca needs Python {needed} or later and {sys.executable} is {current}: "
            "use a newer one, such as `make PYTHON=python3.12 test`."
        )
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("demo", "full", "clean"), help="the environment to create; clean removes it")
    kind = parser.parse_args().kind
    if kind == "clean":
        clean()
    else:
        ensure(kind)


if __name__ == "__main__":
    exit_on_failure(main)
