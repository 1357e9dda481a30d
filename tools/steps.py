"""Shared by the set-up tools: paths, logged steps, pip calls and pinned versions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
PIP = (PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color")

TAIL_LINES = 40
PULSE_SECONDS = 30.0


class StepFailed(Exception):
    """A step failed; the message is one sentence to the user."""


def say(text: str, *, end: str = "\n") -> None:
    """Print at once, so that a long step announces itself before it starts."""
    print(text, end=end, flush=True)


def pinned(name: str) -> str:
    """Return the pinned requirement of a package in constraints.txt, such as `torch==2.13.0`."""
    match = re.search(rf"^{re.escape(name)}==[^\s;#]+", CONSTRAINTS.read_text(), re.MULTILINE)
    if match is None:
        raise StepFailed(f"{CONSTRAINTS.name} has no line '{name}==<version>'; add one.")
    return match.group()


def run(
    what: str,
    command: Sequence[str | Path],
    *,
    log: Path = LOG,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[], str] | None = None,
    seconds: float | None = None,
) -> None:
    """Run a command as one step: print its time, log its output, and show the end of the log on failure."""
    started = time.monotonic()
    say(f"{what} ... ", end="")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        start = output.tell()
        # A separate session, so that this program can stop the whole compiler tree with itself.
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )
        try:
            code = _wait(process, started, progress, seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code != 0:
        say("failed")
        with log.open("rb") as written:
            written.seek(start)
            lines = written.read().decode(errors="replace").splitlines()
        print("\n".join(lines[-TAIL_LINES:]), file=sys.stderr)
        raise StepFailed(f"'{what}' ended with exit code {code}; the full output is in {log}.")
    say(f"{time.monotonic() - started:.0f} s")


def _wait(
    process: subprocess.Popen[bytes],
    started: float,
    progress: Callable[[], str] | None,
    seconds: float | None,
) -> int:
    while True:
        try:
            return process.wait(timeout=PULSE_SECONDS if progress else seconds)
        except subprocess.TimeoutExpired:
            if progress is None:
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait()
            say(f"\n  {progress()} after {time.monotonic() - started:.0f} s ... ", end="")


def pip_install(what: str, *arguments: str | Path) -> None:
    """Install into the virtual environment, within the constraints."""
    run(what, [*PIP, "install", "-c", CONSTRAINTS, *arguments])


def exit_on_failure(main: Callable[[], None]) -> None:
    """Run a tool's main function; report a failed step in one sentence, and end child processes on a signal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main()
    except StepFailed as failure:
        sys.exit(f"error: {failure}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
