"""The packages of the Spark runtime, and the Java it starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from orca.core.packages import from_extra

JAVA_FIX = "apt-get install openjdk-17-jre-headless  # or point JAVA_HOME to a full Java 17 or later"
# Spark starts its JVM with this module, which reduced Java runtimes lack.
JAVA_MODULE = "--add-modules=jdk.incubator.vector"


def java(quick: bool) -> tuple[str, str]:
    """Return a note on the Java that Spark would start, and a fix if Spark cannot use it; `quick` does not run it."""
    home = os.environ.get("JAVA_HOME", "")
    # If JAVA_HOME is set, even wrongly, Spark ignores PATH.
    command = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if not command:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "no java in JAVA_HOME or PATH"
        return where, JAVA_FIX
    if quick:
        return f"java at {command}", ""
    try:
        full = _run(command, JAVA_MODULE, "-version")
        # A Java that lacks the module, or is too old to know the option, gives its version without it.
        plain = _run(command, "-version") if full.returncode else full
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command} does not start: {error}", JAVA_FIX
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', plain.stderr)
    if not match:
        return f"{command} -version gave no version", JAVA_FIX
    if int(match[1]) < 17:
        return f"Spark needs Java 17 or later; {command} is Java {match[1]}", JAVA_FIX
    if full.returncode:
        return f"Java {match[1]} at {command} lacks a module that Spark needs ({JAVA_MODULE})", JAVA_FIX
    return f"Java {match[1]} at {command}", ""


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


PACKAGES = (from_extra("runtime", "spark", "pyspark", "pyspark-client", module="pyspark", order=30, inspect=java),)
