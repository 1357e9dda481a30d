"""Find Java 17 or later for Spark, or install it if this user may."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from steps import LOG, StepFailed, exit_on_failure, run, say

MINIMUM = 17
# The first available package is installed; newer Debian releases have removed 17.
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")


def version_of(java: str) -> int | None:
    """Return the major version of a `java` program: 17 for 17.0.15, 8 for 1.8.0; None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if done.returncode == 0 and match else None


def ensure_java(log: Path = LOG) -> None:
    """Make sure that Spark finds Java, or raise an error that says what to install."""
    home = os.environ.get("JAVA_HOME")
    if home:  # Spark prefers it to PATH, so a bad one cannot be ignored.
        version = version_of(str(Path(home) / "bin" / "java"))
        if version is None or version < MINIMUM:
            received = "has no working bin/java" if version is None else f"is Java {version}"
            raise StepFailed(
                f"JAVA_HOME={home} {received}, and Spark needs Java {MINIMUM} or later: "
                "point it to one, or unset it to use the java on PATH."
            )
        return
    version = version_of("java")
    if version is not None and version >= MINIMUM:
        return
    received = "no java on PATH" if version is None else f"Java {version} on PATH"
    if not (os.geteuid() == 0 and shutil.which("apt-get")):
        raise StepFailed(
            f"Spark needs Java {MINIMUM} or later and there is {received}: install a JRE "
            f"(Debian, Ubuntu: sudo apt-get install {PACKAGES[0]}) or set JAVA_HOME."
        )
    _install_from_apt(log)
    version = version_of("java")
    if version is None or version < MINIMUM:
        raise StepFailed(
            f"Spark needs Java {MINIMUM} or later; after the installation there is still {received}: "
            "set JAVA_HOME to the new one."
        )


def _install_from_apt(log: Path) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("System package lists", ["apt-get", "update", "-q"], log=log, environment=environment)
    for package in PACKAGES:
        if subprocess.run(["apt-cache", "show", package], capture_output=True).returncode == 0:
            command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", package]
            run(f"Java ({package})", command, log=log, environment=environment)
            return
    raise StepFailed(f"apt-get knows none of {', '.join(PACKAGES)}: install Java {MINIMUM} or later.")


def main() -> None:
    """Check from the command line."""
    ensure_java()
    say("Java is installed.")


if __name__ == "__main__":
    exit_on_failure(main)
