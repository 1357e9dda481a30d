"""Processes of this host: whether a rank's is alive, how one ended, and how to end one."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable

import psutil

from orca.launch.base import Hello

_CLOCK_SECONDS = 2.0
"""Tolerance for a process's start time, which is derived from the machine's boot time and its clock."""


def _same(process: psutil.Process, hello: Hello) -> bool:
    return bool(abs(process.create_time() - hello.born) < _CLOCK_SECONDS)


def lives(hello: Hello) -> bool:
    """Whether the process that sent this Hello is still alive (its id may belong to another by now)."""
    try:
        process = psutil.Process(hello.pid)
        return _same(process, hello) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    except OSError:  # this process may open no more files
        return True


def kill(hello: Hello) -> None:
    """End the process that sent this Hello, if it is still alive."""
    with contextlib.suppress(psutil.Error, OSError):  # the latter if this process may open no more files
        process = psutil.Process(hello.pid)
        if _same(process, hello):
            process.kill()


def explain_exit(code: int) -> str:
    """Say in words how a process ended, from its exit code (negative: a signal).

    >>> explain_exit(-9)
    'killed by SIGKILL (often a sign of too little memory)'
    >>> explain_exit(3)
    'exit code 3'
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (often a sign of too little memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def wait_until(condition: Callable[[], bool], seconds: float, step: float = 0.02) -> bool:
    """Poll a condition for at most `seconds`; return whether it came true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True
