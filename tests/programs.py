"""Programs that tests run in a process of their own, and processes that kill themselves once."""

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


def run(code: str, **environment: str) -> str:
    """What a program of Python prints; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def is_first(mark: str) -> bool:
    """Whether nobody has asked about this file before, in any process; it is there afterwards."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def kill_me_once(mark: str) -> None:
    """Kill this process, if none has been killed for this mark."""
    if is_first(mark):
        os.kill(os.getpid(), signal.SIGKILL)


def kill_executor_once(mark: str) -> None:
    """Kill the whole Spark executor, which is the Java process above this worker, if none has been killed yet."""
    if is_first(mark):
        next(parent for parent in psutil.Process().parents() if parent.name() == "java").kill()
        time.sleep(60)
