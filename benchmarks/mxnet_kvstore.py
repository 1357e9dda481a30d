"""Benchmarks MXNet on its KVStore against hand-written programs: steady-state rows/s, from the second epoch on.

1   dist_sync: two local workers with one thread each, one server and the scheduler, all on two cores
1a    an MLP, against hand-written processes with gluon.Trainer(kvstore="dist_sync")   at least 0.95
1b    the same, where the hand-written workers update the weights, as Orca's do
1c    LeNet, against hand-written processes as in 1a                                   at least 0.95
2   one worker without a store, against a plain Gluon loop: the MLP of 1a
2a    on one core, with one thread                                                     at least 0.95
2b    on all cores, with as many threads                                               at least 0.95

The runs of a part are interleaved, every other turn in reverse order; results are medians over the turns, and the
median of the ratios within a turn. All processes of a side restart in each turn. mxnet_peers.py contains the other
sides.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
# Ranks import the peers by name.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))

import mxnet_peers as peers  # noqa: E402
from comparing import Comparison, Numbers, Part, Side, chosen, facts, measure, on_cores, take_turns  # noqa: E402

from orca import Estimator, create_config, init_orca_context, stop_orca_context  # noqa: E402
from orca.core.machine import usable_cpus  # noqa: E402

TRAINER, ON_WORKERS = "hand-written Trainer", "hand-written, workers update"
ONE_CORE, ALL_CORES = "one core", "all cores"
IMAGES_PER_ROW = 1 / 10
"""LeNet is slower than the MLP and gets fewer rows."""

COMPARED = (
    Comparison("1a", "dist_sync, MLP", "Orca, MLP", f"{TRAINER}, MLP", 0.95),
    Comparison("1b", "dist_sync, MLP, workers update", "Orca, MLP", f"{ON_WORKERS}, MLP", None),
    Comparison("1c", "dist_sync, LeNet", "Orca, LeNet", f"{TRAINER}, LeNet", 0.95),
    Comparison("2a", "one worker, one core", f"Orca, {ONE_CORE}", f"Gluon loop, {ONE_CORE}", 0.95),
    Comparison("2b", "one worker, all cores", f"Orca, {ALL_CORES}", f"Gluon loop, {ALL_CORES}", 0.95),
)
SECTIONS = tuple(one.section for one in COMPARED)


def compare(sections: set[str], net: str, options: argparse.Namespace) -> list[str]:
    """Measure interleaved runs of the sides of these sections."""
    compared = [one for one in COMPARED if one.section in sections]
    losses: dict[str, float] = {}
    rows = options.rows if net == "mlp" else max(options.batch_size, int(options.rows * IMAGES_PER_ROW))
    x, y = peers.NETS[net][1](rows)

    def ours(name: str, workers: int, cores: int) -> float:
        store: dict[str, Any] = {"kvstore": "dist_sync", "num_servers": peers.SERVERS} if workers > 1 else {}
        slots = workers + peers.SERVERS + 1 if workers > 1 else 1
        params = {"learning_rate": peers.RATE, "momentum": peers.MOMENTUM}
        with on_cores(cores):
            init_orca_context(cores=max(slots, cores))
            try:
                est = Estimator.from_mxnet(
                    model_creator=peers.NETS[net][0],
                    loss_creator=peers.loss_creator,
                    config=create_config("sgd", params, log_interval=0),
                    workers=workers,
                    seed=peers.SEED,
                    **store,
                )
                history = est.fit(x, y, epochs=options.epochs, batch_size=options.batch_size, progress=False)
            finally:
                stop_orca_context()
        losses[name] = history["loss"][-1]
        return statistics.median(history["rows_per_s"][1:])

    def by_hand(name: str, kind: str, threads: int, cores: int) -> float:
        with on_cores(cores):
            rates, losses[name] = peers.by_hand(net, kind, folder, options.epochs, options.batch_size, threads)
        return statistics.median(rates[1:])

    world, every_core = peers.WORLD, usable_cpus()
    title = "MLP" if net == "mlp" else "LeNet"
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x)
        np.save(f"{folder}/y.npy", y)
        every: dict[str, Side] = {
            f"{TRAINER}, {title}": lambda: by_hand(f"{TRAINER}, {title}", "dist_sync", 1, world),
            f"Orca, {title}": lambda: ours(f"Orca, {title}", world, world),
            f"{ON_WORKERS}, {title}": lambda: by_hand(f"{ON_WORKERS}, {title}", "dist_sync_on_workers", 1, world),
        }
        for where, cores in ((ONE_CORE, 1), (ALL_CORES, every_core)):
            peer, mine = f"Gluon loop, {where}", f"Orca, {where}"
            every[peer] = lambda name=peer, n=cores: by_hand(name, "single", n, n)
            every[mine] = lambda name=mine, n=cores: ours(name, 1, n)
        needed = {side for one in compared for side in (one.ours, one.peer)}
        results: Numbers = take_turns(
            {name: side for name, side in every.items() if name in needed}, options.turns, "rows/s"
        )
    print(f"  loss of the last epoch, over all workers: { {k: round(v, 4) for k, v in losses.items()} }")
    return [line for one in compared for line in one.lines(results)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="for the MLP; LeNet gets a tenth")
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a step over all workers")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted")
    parser.add_argument("--turns", type=int, default=4, help="even, as the side that runs first in a turn tends to win")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, such as 1a,2b or 1")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs: at least 2, as the first is not counted")
    selected = chosen(options.only, SECTIONS)
    head = [
        f"{options.rows:,} rows x {peers.FEATURES} float32 (LeNet: {int(options.rows * IMAGES_PER_ROW):,} images), "
        f"batch {options.batch_size}, {options.epochs - 1} epochs counted, {options.turns} turns",
        facts(("mxnet", "numpy"), "1 thread per worker unless noted"),
    ]
    groups = ({"1a", "1b"}, "mlp"), ({"1c"}, "lenet"), ({"2a", "2b"}, "mlp")
    parts: list[Part] = [
        (sections & selected, lambda s=sections & selected, n=net: compare(s, n, options)) for sections, net in groups
    ]
    measure(parts, selected, head)


if __name__ == "__main__":
    main()
