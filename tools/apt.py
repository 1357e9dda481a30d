"""Install packages of the operating system, where apt-get and this user's rights allow it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from steps import LOG, StepFailed, run


def is_allowed() -> bool:
    """Return whether this user may install packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(what: str, packages: Sequence[str], log: Path = LOG) -> None:
    """Install the first of some packages that is available."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("System package lists", ["apt-get", "update", "-q"], log=log, environment=environment)
    for package in packages:
        if subprocess.run(["apt-cache", "show", package], capture_output=True).returncode == 0:
            command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", package]
            run(f"{what} ({package})", command, log=log, environment=environment)
            return
    raise StepFailed(f"apt-get knows none of {', '.join(packages)}: install {what}.")
