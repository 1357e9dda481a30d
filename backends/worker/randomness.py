"""The random numbers of a rank: Python's, numpy's and the framework's, seeded for an epoch, saved and restored."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from orca.backends.replica import Replica


def reseed(replica: Replica, seed: int, epoch: int, rank: int) -> None:
    """Seed all random numbers of a rank for an epoch."""
    number = np.random.SeedSequence([seed, epoch, rank, 1]).generate_state(1)[0]
    random.seed(int(number))
    np.random.seed(int(number))
    replica.reseed(seed, epoch, rank)


def random_states(replica: Replica) -> dict[str, Any]:
    """Return the states of all random numbers, for a checkpoint."""
    name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    version, numbers, spare = random.getstate()
    return {
        "framework": replica.random_state(),
        "numpy": [str(name), np.array(keys), int(place), int(has_gauss), float(gauss)],
        "python": [version, np.array(numbers, np.int64), spare],
    }


def load_random_states(replica: Replica, states: Mapping[str, Any]) -> None:
    """Restore what `random_states` returned."""
    replica.load_random_state(states["framework"])
    name, keys, place, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, np.asarray(keys), place, has_gauss, gauss))
    version, numbers, spare = states["python"]
    random.setstate((version, tuple(int(number) for number in numbers), spare))
