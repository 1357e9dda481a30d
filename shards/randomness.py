"""Random numbers of data that is read on a rank, apart from those of the training in the same process."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")


def seed_all(*key: int) -> None:
    """Seed the random numbers of Python, of numpy and, if it is imported, of torch."""
    first, second = np.random.SeedSequence(key).generate_state(2)
    random.seed(int(first))
    np.random.seed(int(second))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(int(first) << 32 | int(second))


class OwnRandomness:
    """Random numbers that begin with a key and are in effect within ``with`` blocks only.

    The first block begins where the key says, each further one where the last has ended. Other random numbers of the
    process continue after a block as if it had not been there.

    >>> own = OwnRandomness(7)
    >>> with own:
    ...     first = random.random()
    >>> with OwnRandomness(7):
    ...     random.random() == first
    True
    """

    def __init__(self, *key: int) -> None:
        self._key = key
        self._inner: Any = None

    def __enter__(self) -> None:
        self._outer = _states()
        if self._inner is None:
            seed_all(*self._key)
        else:
            _restore(self._inner)

    def __exit__(self, *_: object) -> None:
        self._inner = _states()
        _restore(self._outer)


def seeded(create: Callable[[], Iterator[Item]], *key: int) -> Iterator[Item]:
    """Yield the items of an iterator whose code draws random numbers that depend on the key alone."""
    own = OwnRandomness(*key)
    with own:
        items = create()
    try:
        while True:
            with own:
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _states() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()


def _restore(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch = sys.modules.get("torch")
    if torch is not None and states[2] is not None:
        torch.set_rng_state(states[2])
