"""Runs hand-written multi-process programs: starts them, waits for the results they print, and ends them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from typing import Any

HOST = "127.0.0.1"
PATIENCE = 1800
"""Seconds after which a program counts as failed."""
Timed = tuple[list[float], float]
"""Rows/s of each epoch, and the last loss."""


def report(rows_per_s: list[float], loss: float) -> None:
    """Print a process's results so that `answers_of` finds them among other output."""
    print(json.dumps({"rows_per_s": rows_per_s, "loss": loss}), flush=True)


def free_ports(count: int) -> list[int]:
    """Return currently unused ports, for programs that open them themselves."""
    probes = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def with_threads(threads: int) -> dict[str, str]:
    """Return this process's environment with the thread counts of the numeric libraries set."""
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(variables, str(threads))}


def answers_of(commands: list[list[str]], environments: list[dict[str, str]], workers: int) -> list[dict[str, Any]]:
    """Run a process for each command; return the results of the first `workers` once all have reported.

    Then all processes are killed. Their input stays open until then, so that a process can wait for the end.
    """
    # Frameworks write to both streams; files do not fill up as pipes do.
    with tempfile.TemporaryDirectory() as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number, (command, environment) in enumerate(zip(commands, environments, strict=True)):
                with open(f"{folder}/{number}.out", "wb") as out, open(f"{folder}/{number}.err", "wb") as err:
                    processes.append(
                        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err)
                    )
            return _answers(processes[:workers], folder)
        finally:
            for process in processes:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()


def _answers(processes: list[subprocess.Popen[bytes]], folder: str) -> list[dict[str, Any]]:
    """Return each process's results once all have reported; raise if one ends without."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        answers = [_answer(f"{folder}/{number}.out") for number in range(len(processes))]
        complete = [answer for answer in answers if answer is not None]
        if len(complete) == len(processes):
            return complete
        for number, code in enumerate(codes):
            # The exit code was read before the answer, so the answer cannot still be on its way.
            if code is not None and answers[number] is None:
                with open(f"{folder}/{number}.err", errors="replace") as file:
                    raise RuntimeError(f"process {number} ended with code {code}: …{file.read()[-500:]}")
        time.sleep(0.2)
    raise TimeoutError(f"no answer in {PATIENCE} seconds")


def _answer(path: str) -> dict[str, Any] | None:
    with open(path) as file:
        for line in file:
            if line.startswith('{"rows_per_s"') and line.endswith("\n"):
                return json.loads(line)  # type: ignore[no-any-return]
    return None
