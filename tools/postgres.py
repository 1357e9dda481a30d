"""Find the PostgreSQL server, which tests of the model store start, or install it if this user may."""

from __future__ import annotations

import shutil
from pathlib import Path

import apt
from steps import StepFailed, exit_on_failure, say


def ensure_postgres() -> None:
    """Install PostgreSQL if it is missing; without it, tests of the store with PostgreSQL are skipped."""
    # Debian keeps the programs of the server in a folder that is not on PATH.
    if shutil.which("initdb") is not None or any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return
    try:
        if apt.is_allowed():
            apt.install("PostgreSQL", ["postgresql"])
            return
    except StepFailed as failure:
        say(str(failure))
    say("PostgreSQL is not installed: its tests are skipped (Debian, Ubuntu: apt-get install postgresql).")


if __name__ == "__main__":
    exit_on_failure(ensure_postgres)
