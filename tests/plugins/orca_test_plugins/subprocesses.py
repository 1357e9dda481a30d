"""A runtime for Orca: each rank is a plain subprocess, started with ``python -m``.

init_orca_context(runtime="subprocesses", cores=4)
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from orca.core.machine import search_path, usable_cpus
from orca.errors import ArgumentError
from orca.launch.base import Hello, Launcher, Meeting
from orca.launch.processes import explain_exit
from orca.launch.rank import serve
from orca.runtimes.base import Runtime, RuntimeRequest


class SubprocessRuntime(Runtime):
    """This machine. Shards are stored in mapped files, which is what a runtime gets by default."""

    name = "subprocesses"

    def __init__(self, cores: int) -> None:
        self.cores = cores

    @classmethod
    def start(cls, request: RuntimeRequest) -> SubprocessRuntime:
        if request.options:
            raise ArgumentError(f"The runtime {cls.name!r} has no option {', '.join(request.options)}.")
        return cls(request.cores or usable_cpus())

    def launcher(self, preload: Sequence[str] = ()) -> Launcher:
        return SubprocessLauncher(self.cores)


class SubprocessLauncher(Launcher):
    """Starts and ends the processes of one gang."""

    runtime = SubprocessRuntime.name

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []

    def slots(self, wanted: int = 0) -> int:
        return self._cores

    def start(self, world: int, meeting: Meeting) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search_path())}
        for rank in range(world):
            process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
            self._processes.append(process)
            assert process.stdin is not None
            # The key lets its owner into the gang: it must not be visible on the command line.
            with contextlib.suppress(BrokenPipeError), process.stdin as order:
                order.write(json.dumps([meeting.host, meeting.port, meeting.key.hex()]).encode())

    def deaths(self) -> dict[int, str]:
        codes = enumerate(process.poll() for process in self._processes)
        return {rank: explain_exit(code) for rank, code in codes if code is not None}

    def stop(self, hellos: Mapping[int, Hello], patience: float) -> None:
        end = time.monotonic() + patience
        for process in self._processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def main() -> None:
    """Run one rank: read from standard input where the driver listens, then serve it."""
    host, port, key = json.load(sys.stdin)
    serve(Meeting(host, port, bytes.fromhex(key)), int(sys.argv[1]), echo=False)


if __name__ == "__main__":
    main()
