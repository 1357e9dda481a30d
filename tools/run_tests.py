"""Run the whole test suite as two lanes side by side; arguments go to pytest.

Tests spend most of their time waiting: for processes to start, to be killed and to be noticed. Two lanes use the cores
that one leaves idle. Each lane is a sequence of commands with temporary folders and clusters of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from steps import PYTHON, ROOT, StepFailed, exit_on_failure

NO_TESTS = 5
"""The exit code of pytest if it has collected no test."""
POLL_SECONDS = 0.2
STOP_SECONDS = 30.0


class Lane:
    """Commands that run one after another, with their output in a file."""

    def __init__(self, output: Path, commands: Sequence[Sequence[str | Path]]) -> None:
        self.output = output
        self.codes: list[int] = []
        self._commands = commands
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopped = False
        self.output.touch()
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether a command of this lane is still running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Interrupt the command that is running, so that it stops its clusters, and start no other."""
        self._stopped = True
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _run(self) -> None:
        with self.output.open("wb") as output:
            for command in self._commands:
                if self._stopped:
                    return
                output.write(f"==> {' '.join(str(part) for part in command[1:])}\n".encode())
                output.flush()
                self._process = subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    start_new_session=True,
                )
                self.codes.append(self._process.wait())


def follow(lane: Lane) -> None:
    """Print the output of a lane until it has ended."""
    with lane.output.open("rb") as output:
        while True:
            ended = not lane.running
            while chunk := output.read(65536):
                sys.stdout.buffer.write(chunk)
                sys.stdout.flush()
            if ended:
                return
            time.sleep(POLL_SECONDS)


def pytest(part: str, arguments: Sequence[str]) -> tuple[str | Path, ...]:
    """Return the command that runs one part of the suite."""
    return (PYTHON, "-m", "pytest", "--part", part, "-o", f"cache_dir=.pytest_cache/{part}", *arguments)


def main() -> None:
    """Run both lanes, print one after the other, and fail if a command of either failed."""
    arguments = sys.argv[1:]
    parts = (("core",), ("tensorflow", "mxnet"))
    with tempfile.TemporaryDirectory(prefix="orca-lanes-") as folder:
        lanes = [Lane(Path(folder, names[0]), [pytest(name, arguments) for name in names]) for names in parts]
        try:
            for lane in lanes:
                follow(lane)
        finally:
            for lane in lanes:
                lane.stop()
    codes = [code for lane in lanes for code in lane.codes]
    if any(code not in (0, NO_TESTS) for code in codes):
        raise StepFailed("tests failed; see the summaries above.")
    if all(code == NO_TESTS for code in codes):
        raise StepFailed(f"no test was selected by {' '.join(arguments) or 'pytest'}.")


if __name__ == "__main__":
    exit_on_failure(main)
