"""Benchmarks Estimator.fit against hand-written two-process DDP with the same model, rows, order and batches.

Prints the ratio of steady-state rows/s (the epochs after the first), and the time from the call of `fit` to the first
finished step on a cold and on a warm gang. The runs are interleaved; results are medians over the turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orca import Estimator, init_orca_context, stop_orca_context

FEATURES, CLASSES, SEED = 64, 10, 0


class Mlp(nn.Module):
    """A small network, so that overhead is visible."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def make_rows(rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    return x, x[:, :CLASSES].argmax(axis=1)


def by_hand(rank: int, port: int, path: str, epochs: int, batch_size: int, out: Any) -> None:
    """Train as in a careful hand-written program: shared arrays, seeded permutation, DDP, one thread per process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x = torch.from_numpy(np.load(f"{path}/x.npy", mmap_mode="c"))
    y = torch.from_numpy(np.load(f"{path}/y.npy", mmap_mode="c"))
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    seconds, losses = [], []
    for epoch in range(epochs):
        epoch_start = time.perf_counter()
        order = torch.from_numpy(np.random.default_rng([SEED, epoch]).permutation(len(x)))
        total = 0.0
        for start in range(0, len(x), batch_size):
            index = order[start : start + batch_size]
            middle = (len(index) + 1) // 2
            mine = index[:middle] if rank == 0 else index[middle:]
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x[mine]), y[mine])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(mine)
        seconds.append(time.perf_counter() - epoch_start)
        losses.append(total)
    if rank == 0:
        out.put((seconds, losses))
    dist.destroy_process_group()


def time_by_hand(path: str, epochs: int, batch_size: int) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    ranks = [spawn.Process(target=by_hand, args=(rank, port, path, epochs, batch_size, out)) for rank in range(2)]
    for process in ranks:
        process.start()
    seconds, _ = out.get(timeout=600)
    for process in ranks:
        process.join(60)
    return list(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    import tempfile

    x, y = make_rows(options.rows)
    hand: list[float] = []
    ours: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    with tempfile.TemporaryDirectory() as path:
        np.save(f"{path}/x.npy", x)
        np.save(f"{path}/y.npy", y)
        for turn in range(options.turns):
            seconds = time_by_hand(path, options.epochs, options.batch_size)
            hand.append(options.rows / statistics.median(seconds[1:]))

            init_orca_context(cores=2)
            est = Estimator.from_torch(
                model=Mlp,
                optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                loss=nn.CrossEntropyLoss(),
                workers=2,
                seed=SEED,
            )
            tiny = x[:2], y[:2]
            start = time.perf_counter()
            est.fit(*tiny, batch_size=2, progress=False)
            cold.append(time.perf_counter() - start)
            start = time.perf_counter()
            est.fit(*tiny, batch_size=2, progress=False)
            warm.append(time.perf_counter() - start)
            history = est.fit(x, y, epochs=options.epochs, batch_size=options.batch_size, progress=False)
            ours.append(options.rows / statistics.median(history["seconds"][1:]))
            stop_orca_context()
            print(f"turn {turn + 1}: by hand {hand[-1]:,.0f} rows/s, Orca {ours[-1]:,.0f} rows/s", flush=True)

    ratios = [b / a for a, b in zip(hand, ours, strict=True)]
    print()
    print(f"{options.rows:,} rows x {FEATURES} floats, batch {options.batch_size}, 2 workers, {options.turns} turns")
    print(f"hand-written DDP     {statistics.median(hand):>10,.0f} rows/s (median of turns)")
    print(f"Estimator.fit        {statistics.median(ours):>10,.0f} rows/s")
    print(f"ratio                {statistics.median(ratios):>10.3f} (turns: {', '.join(f'{r:.3f}' for r in ratios)})")
    print(f"fit of one step      {statistics.median(cold):>10.2f} s cold, {statistics.median(warm):.3f} s warm")


if __name__ == "__main__":
    main()
