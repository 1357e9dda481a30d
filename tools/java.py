"""Find Java 17 or later for Spark, or install it if this user may."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import apt
from steps import LOG, StepFailed, exit_on_failure, say

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
    if not apt.is_allowed():
        raise StepFailed(
            f"Spark needs Java {MINIMUM} or later and there is {received}: install a JRE "
            f"(Debian, Ubuntu: sudo apt-get install {PACKAGES[0]}) or set JAVA_HOME."
        )
    apt.install(f"Java {MINIMUM} or later", PACKAGES, log)
    version = version_of("java")
    if version is None or version < MINIMUM:
        raise StepFailed(
            f"Spark needs Java {MINIMUM} or later; after the installation there is still {received}: "
            "set JAVA_HOME to the new one."
        )


def main() -> None:
    """Check from the command line."""
    ensure_java()
    say("Java is installed.")


if __name__ == "__main__":
    exit_on_failure(main)
