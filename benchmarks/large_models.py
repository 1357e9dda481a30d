"""Benchmarks torch_distributed against hand-written DDP, by the size of the model and the number of ranks.

A section is a size and a number of ranks, such as 21x3: 21 million parameters on three ranks. The larger the model, the
more a step depends on how gradients are summed and the less on everything around it. The target of every section is at
least 0.95 of the rows/s of hand-written DDP.

The ranks run on this machine, with as many threads each on both sides. Each turn starts new ranks, the sides are
interleaved, and every other turn runs in reverse order; results are medians over the turns, and the median of the
ratios within a turn. With --limit a third side trains without any synchronization, one model per rank: no program that
sums gradients can be faster. torch_peers.py contains the other sides.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))

import torch_peers as peers  # noqa: E402
from comparing import Comparison, Part, Side, chosen, facts, measure, take_turns  # noqa: E402

from orca import Estimator, init_orca_context, stop_orca_context  # noqa: E402
from orca.core.machine import usable_cpus  # noqa: E402

WIDTHS = {"0.01": (96, 48), "1": (512,) * 5, "6": (1024,) * 7, "21": (2048,) * 6}
"""Widths of the hidden layers, by millions of parameters."""
STEPS = {"0.01": 400, "1": 60, "6": 16, "21": 8}
"""Steps of an epoch, so that an epoch takes about as long for every size."""
RANKS = (2, 3, 4)
SECTIONS = tuple(f"{size}x{world}" for size in WIDTHS for world in RANKS)
BAR = 0.95
OURS, PEER, LIMIT = "Orca torch_distributed", "hand-written DDP", "no synchronization"


def threads(world: int) -> int:
    """Return the threads of a hand-written rank, as many as Orca's ranks have."""
    return max(1, usable_cpus() // world)


def parameters(size: str) -> int:
    return sum(value.numel() for value in peers.Mlp(WIDTHS[size]).parameters())


def ours(x: Any, y: Any, widths: tuple[int, ...], world: int, options: argparse.Namespace) -> float:
    init_orca_context(cores=world)
    try:
        est = Estimator.from_torch(
            model=lambda config: peers.Mlp(widths),
            optimizer=lambda model, config: peers.sgd(model),
            loss=nn.CrossEntropyLoss(),
            config={},
            backend="torch_distributed",
            workers=world,
            seed=peers.SEED,
        )
        history = est.fit(x, y, epochs=options.epochs, batch_size=options.batch_size, progress=False)
    finally:
        stop_orca_context()
    return statistics.median(history["rows_per_s"][1:])


def by_hand(folder: str, widths: tuple[int, ...], world: int, options: argparse.Namespace, synchronized: bool) -> float:
    rates, _ = peers.ddp_by_hand(
        folder, options.epochs, options.batch_size, threads(world), world, widths, synchronized
    )
    return statistics.median(rates[1:])


def compare(section: str, options: argparse.Namespace) -> list[str]:
    """Measure one size on one number of ranks."""
    size, ranks = section.split("x")
    widths, world = WIDTHS[size], int(ranks)
    x, y = peers.make_rows(STEPS[size] * options.batch_size)
    print(f"{section}: {parameters(size):,} parameters on {world} ranks", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x)
        np.save(f"{folder}/y.npy", y)
        sides: dict[str, Side] = {
            PEER: lambda: by_hand(folder, widths, world, options, True),
            OURS: lambda: ours(x, y, widths, world, options),
        }
        if options.limit:
            sides[LIMIT] = lambda: by_hand(folder, widths, world, options, False)
        results = take_turns(sides, options.turns, "rows/s")
    title = f"{size} M parameters, {world} ranks"
    lines = Comparison(section, title, OURS, PEER, BAR).lines(results)
    if options.limit:
        lines += Comparison(section, f"{title}: the limit", OURS, LIMIT, None).lines(results)
    steps = {side: statistics.median(rates) for side, rates in results.items()}
    times = ", ".join(f"{side} {options.batch_size / rate * 1e3:.1f}" for side, rate in steps.items())
    return [*lines, f"      ms/step: {times}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a step over all ranks")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted")
    parser.add_argument("--turns", type=int, default=4, help="even, as the side that runs first in a turn tends to win")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, such as 21x3, or 21 for all ranks")
    parser.add_argument("--limit", action="store_true", help="measure steps without synchronization too")
    options = parser.parse_args()
    sections = chosen(options.only, SECTIONS)
    head = [
        f"rows of {peers.FEATURES} float32, batch {options.batch_size} over all ranks, {options.turns} turns",
        facts(("torch", "numpy"), f"at most {threads(min(RANKS))} threads per rank"),
    ]
    parts: list[Part] = [
        ({section}, functools.partial(compare, section, options)) for section in SECTIONS if section in sections
    ]
    measure(parts, sections, head)


if __name__ == "__main__":
    main()
