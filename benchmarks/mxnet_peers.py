"""Peers for mxnet_kvstore.py: careful hand-written programs with Gluon and its Trainer alone.

Each is a separate program: `python mxnet_peers.py NET KIND …` runs one process of it. With DMLC_ROLE=scheduler or
server it serves; otherwise it trains on its own part of the rows and prints the rows/s of each epoch as JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from programs import HOST, Timed, answers_of, free_ports, report, with_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SEED, RATE, MOMENTUM = 0, 0.01, 0.9
FEATURES, HIDDEN, CLASSES = 64, 256, 2
SIDE, DIGITS = 28, 10
WORLD, SERVERS = 2, 1
Array = np.ndarray[Any, Any]


def make_rows(rows: int) -> tuple[Array, Array]:
    """Return random rows, labelled by the side of a plane."""
    x = np.random.default_rng(SEED).standard_normal((rows, FEATURES), dtype="f4")
    return x, (x[:, : FEATURES // 2].sum(axis=1) > 0).astype("i8")


def make_images(rows: int) -> tuple[Array, Array]:
    """Return random images, brighter for larger digits."""
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, DIGITS, rows)
    x = rng.standard_normal((rows, 1, SIDE, SIDE), dtype="f4")
    x += (y[:, None, None, None] / DIGITS).astype("f4")
    return x, y


def mlp(config: dict[str, Any]) -> Any:
    """Create a small network, so that overhead is visible."""
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(nn.Dense(HIDDEN, activation="relu"), nn.Dense(HIDDEN, activation="relu"), nn.Dense(CLASSES))
    return _ready(net)


def lenet(config: dict[str, Any]) -> Any:
    """Create LeNet-5 with ReLU and max pooling."""
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(6, 5, padding=2, activation="relu"),
        nn.MaxPool2D(),
        nn.Conv2D(16, 5, activation="relu"),
        nn.MaxPool2D(),
        nn.Flatten(),
        nn.Dense(120, activation="relu"),
        nn.Dense(84, activation="relu"),
        nn.Dense(DIGITS),
    )
    return _ready(net)


def _ready(net: Any) -> Any:
    import mxnet as mx

    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def loss_creator(config: dict[str, Any]) -> Any:
    from mxnet import gluon

    return gluon.loss.SoftmaxCrossEntropyLoss()


NETS: dict[str, tuple[Callable[[dict[str, Any]], Any], Callable[[int], tuple[Array, Array]]]] = {
    "mlp": (mlp, make_rows),
    "lenet": (lenet, make_images),
}
"""The creators of each network and of its rows."""


# One process of a hand-written program -------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("net", choices=tuple(NETS))
    parser.add_argument("kind", choices=("dist_sync", "dist_sync_on_workers", "single"))
    parser.add_argument("--folder", required=True, help="where x.npy and y.npy are")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="rows of a step over all workers")
    options = parser.parse_args(arguments)

    import orca  # noqa: F401 - makes MXNet importable with numpy 2

    # isort: split
    import mxnet as mx  # blocks in servers and the scheduler until the workers have exited
    from mxnet import gluon

    store = None if options.kind == "single" else mx.kv.create("dist_sync")
    rank, world = (0, 1) if store is None else (store.rank, store.num_workers)
    mx.random.seed(SEED)
    net, loss = NETS[options.net][0]({}), loss_creator({})
    x, y = (np.load(f"{options.folder}/{name}.npy", mmap_mode="r") for name in "xy")
    part, share = len(x) // world, options.batch_size // world  # the same number of steps in every process
    where = {} if store is None else {"update_on_kvstore": options.kind == "dist_sync"}
    params = {"learning_rate": RATE, "momentum": MOMENTUM}
    trainer = gluon.Trainer(net.collect_params(), "sgd", params, kvstore=store, **where)
    rng = np.random.default_rng(SEED + rank)
    rates: list[float] = []
    total = 0.0
    for _ in range(options.epochs):
        epoch_start = time.perf_counter()
        order = rank * part + rng.permutation(part)
        summed = mx.nd.zeros(1)
        for start in range(0, part, share):
            index = order[start : start + share]
            data, label = mx.nd.array(x[index], dtype="f4"), mx.nd.array(y[index], dtype="f4")
            with mx.autograd.record():
                value = loss(net(data), label)
            value.backward()
            trainer.step(options.batch_size)
            summed += value.sum()  # read at the end, so that steps do not wait for it
        total = float(summed.asscalar())
        mx.nd.waitall()
        rates.append(part * world / (time.perf_counter() - epoch_start))
    report(rates, total / part)


# The whole programs, as the benchmark calls them ---------------------------------------------------------------------


def by_hand(net: str, kind: str, folder: str, epochs: int, batch_size: int, threads: int) -> Timed:
    """Run a program; return the rows/s of its first worker, and the loss over the rows of all workers."""
    command = [sys.executable, __file__, net, kind, f"--folder={folder}", f"--epochs={epochs}"]
    command.append(f"--batch-size={batch_size}")
    common = with_threads(threads)
    environments = [common]
    if kind != "single":
        common |= {
            "DMLC_PS_ROOT_URI": HOST,
            "DMLC_PS_ROOT_PORT": str(free_ports(1)[0]),
            "DMLC_NODE_HOST": HOST,
            "DMLC_NUM_WORKER": str(WORLD),
            "DMLC_NUM_SERVER": str(SERVERS),
        }
        roles = ["worker"] * WORLD + ["server"] * SERVERS + ["scheduler"]
        environments = [{**common, "DMLC_ROLE": role} for role in roles]
    workers = 1 if kind == "single" else WORLD
    answers = answers_of([command] * len(environments), environments, workers)
    return answers[0]["rows_per_s"], sum(one["loss"] for one in answers) / workers  # all have the same number of rows


if __name__ == "__main__" and len(sys.argv) > 1:
    main(sys.argv[1:])
