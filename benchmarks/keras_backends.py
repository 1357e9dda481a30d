"""Benchmarks the Keras backends against hand-written programs: steady-state rows/s, from the second epoch on.

1   two local workers with one thread each
1a    multiworker, against hand-written processes with TensorFlow's collectives   at least 0.95
1b    horovod, against hand-written processes with Horovod                        at least 0.95
1c    parameter_server, against hand-written processes with TensorFlow's collectives
2   one worker, against model.fit on the same arrays
2a    on one core, with one thread                                                at least 0.95
2b    on all cores, with as many threads                                          at least 0.95

The runs of a part are interleaved, every other turn in reverse order; results are medians over the turns, and the
median of the ratios within a turn. All processes of a side restart in each turn and may use as many cores as the
section has threads. keras_peers.py contains the other sides.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
# Ranks import the peers by name.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras_peers as peers  # noqa: E402
from comparing import Comparison, Part, Side, chosen, facts, measure, on_cores, take_turns  # noqa: E402

from orca import Estimator, init_orca_context, stop_orca_context  # noqa: E402
from orca.core.machine import usable_cpus  # noqa: E402

COLLECTIVES, HOROVOD = "hand-written TensorFlow collectives", "hand-written Horovod"
ONE_CORE, ALL_CORES = "one core", "all cores"

COMPARED = (
    Comparison("1a", "steady training, multiworker", "Orca multiworker", COLLECTIVES, 0.95),
    Comparison("1b", "steady training, horovod", "Orca horovod", HOROVOD, 0.95),
    Comparison("1c", "steady training, parameter_server", "Orca parameter_server", COLLECTIVES, None),
    Comparison("2a", "one worker, one core", f"Orca, {ONE_CORE}", f"model.fit, {ONE_CORE}", 0.95),
    Comparison("2b", "one worker, all cores", f"Orca, {ALL_CORES}", f"model.fit, {ALL_CORES}", 0.95),
)
SECTIONS = tuple(one.section for one in COMPARED)


def steady(sections: set[str], options: argparse.Namespace) -> list[str]:
    """Measure interleaved runs of the sides of these sections."""
    compared = [one for one in COMPARED if one.section in sections]
    losses: dict[str, float] = {}

    def ours(name: str, backend: str, workers: int, cores: int) -> float:
        with on_cores(cores):
            init_orca_context(cores=cores)
            try:
                est = Estimator.from_keras(
                    model_creator=peers.model_creator, backend=backend, workers=workers, seed=peers.SEED
                )
                history = est.fit(x, y, epochs=options.epochs, batch_size=options.batch_size, progress=False)
            finally:
                stop_orca_context()
        losses[name] = history["loss"][-1]
        return statistics.median(history["rows_per_s"][1:])

    def by_hand(name: str, train: Callable[..., peers.Timed], threads: int, cores: int) -> float:
        with on_cores(cores):
            rates, losses[name] = train(folder, options.epochs, options.batch_size, threads)
        return statistics.median(rates[1:])

    world, every_core = peers.WORLD, usable_cpus()
    with tempfile.TemporaryDirectory() as folder:
        x, y = peers.make_rows(options.rows)
        np.save(f"{folder}/x.npy", x)
        np.save(f"{folder}/y.npy", y)
        every: dict[str, Side] = {
            COLLECTIVES: lambda: by_hand(COLLECTIVES, peers.multiworker_by_hand, 1, world),
            "Orca multiworker": lambda: ours("Orca multiworker", "multiworker", world, world),
            "Orca parameter_server": lambda: ours("Orca parameter_server", "parameter_server", world, world),
            HOROVOD: lambda: by_hand(HOROVOD, peers.horovod_by_hand, 1, world),
            "Orca horovod": lambda: ours("Orca horovod", "horovod", world, world),
        }
        for where, cores in ((ONE_CORE, 1), (ALL_CORES, every_core)):
            peer, mine = f"model.fit, {where}", f"Orca, {where}"
            every[peer] = lambda name=peer, n=cores: by_hand(name, peers.single_by_hand, n, n)
            every[mine] = lambda name=mine, n=cores: ours(name, "multiworker", 1, n)
        needed = {side for one in compared for side in (one.ours, one.peer)}
        results = take_turns({name: side for name, side in every.items() if name in needed}, options.turns, "rows/s")
    print(f"  loss of the last epoch (hand-written: process 0's): { {k: round(v, 4) for k, v in losses.items()} }")
    return [line for one in compared for line in one.lines(results)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a step over all workers")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted")
    parser.add_argument("--turns", type=int, default=4, help="even, as the side that runs first in a turn tends to win")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, such as 1a,2b or 1")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs: at least 2, as the first is not counted")
    sections = chosen(options.only, SECTIONS)
    head = [
        f"{options.rows:,} rows x {peers.FEATURES} float32, batch {options.batch_size}, {options.epochs - 1} epochs "
        f"counted, {options.turns} turns",
        facts(("tensorflow-cpu", "keras", "horovod", "numpy"), "1 thread per worker unless noted"),
    ]
    several = {section for section in sections if section.startswith("1")}
    parts: list[Part] = [
        (several, lambda: steady(several, options)),
        (sections - several, lambda: steady(sections - several, options)),
    ]
    measure(parts, sections, head)


if __name__ == "__main__":
    main()
