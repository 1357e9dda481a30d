"""Programs that tests run in separate processes, and processes that kill themselves once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def run(code: str, seconds: int = 170, **environment: str) -> str:
    """Run a Python program, which must succeed within some seconds, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def is_first(mark: str) -> bool:
    """Create this file; return whether this call, among all processes, was the first."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def kill_me_once(mark: str) -> None:
    """Kill this process, unless another was killed for this mark."""
    if is_first(mark):
        os.kill(os.getpid(), signal.SIGKILL)


def kill_executor_once(mark: str) -> None:
    """Kill the Spark executor, the Java process above this worker, unless one was killed for this mark."""
    if is_first(mark):
        next(parent for parent in psutil.Process().parents() if parent.name() == "java").kill()
        time.sleep(60)
