"""Hand-written programs of several processes: starts them, waits for the numbers they print, and ends them."""

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


def tell(rows_per_s: list[float], loss: float) -> None:
    """What a process says at its end, so that `answers_of` finds it among whatever else was printed."""
    print(json.dumps({"rows_per_s": rows_per_s, "loss": loss}), flush=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses at the moment, for programs that want to open them themselves."""
    probes = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def with_threads(threads: int) -> dict[str, str]:
    """This process' environment with so many threads for each library that computes."""
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(variables, str(threads))}


def answers_of(commands: list[list[str]], environments: list[dict[str, str]], workers: int) -> list[dict[str, Any]]:
    """Run a process for each command; return what the first `workers` of them told, as soon as all have.

    Then all are ended. Their input stays open until then, so that a process can wait for its end.
    """
    # Frameworks write to either stream; files cannot fill up as pipes do.
    with tempfile.TemporaryDirectory() as words:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number, (command, environment) in enumerate(zip(commands, environments, strict=True)):
                with open(f"{words}/{number}.out", "wb") as out, open(f"{words}/{number}.err", "wb") as err:
                    processes.append(
                        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err)
                    )
            return _answers(processes[:workers], words)
        finally:
            for process in processes:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()


def _answers(processes: list[subprocess.Popen[bytes]], words: str) -> list[dict[str, Any]]:
    """What each process told, as soon as all have; an error if one of them ends without."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        told = [_answer(f"{words}/{number}.out") for number in range(len(processes))]
        found = [one for one in told if one is not None]
        if len(found) == len(processes):
            return found
        for number, code in enumerate(codes):
            # The code was asked for before the answer was looked for.
            if code is not None and told[number] is None:
                with open(f"{words}/{number}.err", errors="replace") as file:
                    raise RuntimeError(f"process {number} ended with code {code}: …{file.read()[-500:]}")
        time.sleep(0.2)
    raise TimeoutError(f"no answer in {PATIENCE} seconds")


def _answer(path: str) -> dict[str, Any] | None:
    with open(path) as file:
        for line in file:
            if line.startswith('{"rows_per_s"') and line.endswith("\n"):
                return json.loads(line)  # type: ignore[no-any-return]
    return None
