"""A generator without an end trains a model on two workers; a data set with shards validates it.

Run ``python examples/streaming.py`` where Orca is installed with torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

from orca import Estimator, init_orca_context

Row = tuple[np.ndarray[Any, Any], np.float32]


def ring(point: np.ndarray[Any, Any]) -> Row:
    """Return a point and whether it is in a ring around the center."""
    return point.astype("float32"), np.float32(0.3 < np.hypot(*point) < 0.8)


def endless(config: dict[str, Any]) -> Iterator[Row]:
    """Yield random points. Every worker calls this in every epoch, with the same random numbers."""
    while True:
        yield ring(np.random.uniform(-1, 1, 2))


class Grid(IterableDataset[Row]):
    """The points of a grid; each worker reads only its own."""

    def __init__(self, side: int, rank: int = 0, world: int = 1) -> None:
        self.side, self.rank, self.world = side, rank, world

    def shard(self, rank: int, world: int) -> Grid:
        return Grid(self.side, rank, world)

    def __iter__(self) -> Iterator[Row]:
        for number in range(self.rank, self.side**2, self.world):
            yield ring(2 * np.array(divmod(number, self.side)) / (self.side - 1) - 1)


def main() -> int:
    est = Estimator.from_torch(
        model=lambda config: nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1)),
        optimizer=torch.optim.Adam,
        loss=nn.BCEWithLogitsLoss(),
        metrics=["accuracy"],
        config={"lr": 1e-2},
        workers=2,
        seed=0,
    )
    with init_orca_context(cores=2):
        history = est.fit(endless, epochs=5, steps_per_epoch=100, batch_size=128, validation_data=Grid(61))
        print(history)
        accuracy = est.evaluate(Grid(61))["accuracy"]
    print(f"accuracy on a grid of {61**2} points: {accuracy:.1%}")
    return 0 if accuracy > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
