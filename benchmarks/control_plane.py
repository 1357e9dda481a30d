"""What the control plane costs by the number of ranks: start, a call, a barrier, an allgather, and a killed rank.

The ranks are local processes without a framework, all on this machine, so the numbers contain the work of every rank
and not only that of the driver. The cost per rank should stay flat: `growth` is its factor per doubling of the ranks.

    python benchmarks/control_plane.py                     # 2, 8, 32, 128 and 512 ranks
    python benchmarks/control_plane.py --ranks 2 8 --json result.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from orca import WorkerError, init_orca_context, stop_orca_context
from orca.launch.gang import Gang

RANKS = (2, 8, 32, 128, 512)
VALUE_BYTES = 1024
MEASURES = ("start", "call", "barrier", "allgather")
SMALLEST = 8
"""Fewer ranks than this have cores of their own, and are left out of the growth."""


def nothing(rank: Any) -> float:
    """Do nothing: what remains is the call itself. Return the CPU time that the rank has used."""
    return time.process_time()


def gather(rank: Any, turns: int, size: int) -> list[float]:
    """Return the seconds of each allgather of `size` bytes that differ from rank to rank; 0 for a barrier."""
    value = os.urandom(size) if size else None
    rank.allgather(value)
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        assert len(rank.allgather(value)) == rank.place.world
        seconds.append(time.perf_counter() - began)
    return seconds


def wait(rank: Any, victim: int) -> None:
    """Wait for all ranks, and let one die of a signal."""
    rank.allgather(None)
    if rank.place.rank == victim:
        rank.emit(("dies", time.time()))
        time.sleep(0.2)  # the event has to leave first
        os.kill(os.getpid(), signal.SIGKILL)
    rank.allgather(None)


def detection(gang: Gang, ranks: int) -> float:
    """Return the seconds from a rank's death to the error, when all other processes have ended."""
    moments: list[float] = []
    try:
        gang.call(wait, ranks - 1, on_event=lambda event: moments.append(event[1]))  # type: ignore[index]
    except WorkerError as error:
        if error.rank == ranks - 1:
            return time.time() - moments[0] - 0.2
        raise
    raise AssertionError("a killed rank was not noticed")


def measure(ranks: int, turns: int) -> dict[str, float]:
    """Measure one number of ranks, with new processes."""
    gang = init_orca_context(cores=ranks).gang(1)
    gang.call(nothing)  # the zygote runs
    gang = init_orca_context(cores=ranks).gang(ranks)
    before, began = time.process_time(), time.perf_counter()
    gang.call(nothing)
    result = {"ranks": ranks, "start": time.perf_counter() - began, "start_cpu": time.process_time() - before}
    calls = []
    ranks_before = sum(gang.call(nothing))
    before = time.process_time()
    for _ in range(turns):
        began = time.perf_counter()
        gang.call(nothing)
        calls.append(time.perf_counter() - began)
    result["call"], result["call_cpu"] = statistics.median(calls), (time.process_time() - before) / turns
    ranks_after = sum(gang.call(nothing))
    result["call_ranks"] = (ranks_after - ranks_before) / (turns + 1)
    result["threads"] = threading.active_count()
    for name, size in (("barrier", 0), ("allgather", VALUE_BYTES)):
        ranks_before = sum(gang.call(nothing))
        before = time.process_time()
        result[name] = statistics.median(gang.call(gather, turns, size)[0])
        result[f"{name}_cpu"] = (time.process_time() - before) / (turns + 1)
        result[f"{name}_ranks"] = (sum(gang.call(nothing)) - ranks_before) / (turns + 1)
    result["detection"] = detection(gang, ranks)
    stop_orca_context()
    return result


def growth(results: list[dict[str, float]], name: str) -> float:
    """Return the factor of the cost per rank for each doubling of the ranks, from the least-squares line of logs."""
    points = [(math.log2(result["ranks"]), math.log2(result[name] / result["ranks"])) for result in results]
    return 2 ** statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else math.nan


def table(results: list[dict[str, float]]) -> str:
    """Return the results as text: milliseconds, milliseconds per rank, and the growth of the latter."""
    parts = {"": "elapsed", "_cpu": "CPU time of the driver", "_ranks": "CPU time of the ranks"}
    lines = [f"{'milliseconds':24}" + "".join(f"{int(result['ranks']):>10}" for result in results)]
    for name in (*MEASURES, "detection"):
        lines.append(f"{name:24}" + "".join(f"{1000 * result[name]:10.2f}" for result in results))
    lines.append(f"{'driver threads':24}" + "".join(f"{int(result['threads']):10d}" for result in results))
    large = [result for result in results if result["ranks"] >= SMALLEST]
    for part, title in parts.items():
        lines.append(f"\nper rank, {title:29}" + " " * (10 * len(results) - 15) + "growth per doubling")
        for name in MEASURES:
            if name + part in results[0]:
                each = "".join(f"{1000 * result[name + part] / result['ranks']:10.3f}" for result in results)
                lines.append(f"{name:24}{each}{growth(large, name + part):10.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--turns", type=int, default=15, help="calls and allgathers for each number of ranks")
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    arguments = parser.parse_args()
    results = []
    for ranks in arguments.ranks:
        results.append(measure(ranks, arguments.turns))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(table(results))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
