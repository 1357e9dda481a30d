"""Iterables of no framework, such as those of a generator function: read on every rank, in their own order."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.adapters.base import Form
from orca.shards.adapters.batches import BatchesAdapter, weight_refused
from orca.shards.adapters.trees import Trees
from orca.shards.on_rank import Reader
from orca.shards.randomness import seeded
from orca.shards.streams import StreamSource
from orca.shards.tree import Tree, as_arrays, kind_of, leaves, tree_map

FETCH_ROWS = 1024


class IterableAdapter(BatchesAdapter):
    """An object that can be iterated again and again and has no length."""

    ends = False

    @staticmethod
    def accepts(data: object) -> bool:
        return hasattr(data, "__iter__") and not hasattr(data, "__len__") and kind_of(data) == "object"

    def source(self, form: Form) -> IterableStream:
        if isinstance(self.data, Iterator):
            raise DataError(
                f"{form.argument}= is a {type(self.data).__name__}, which runs once and in this process only. Give the "
                "function that creates it: every worker calls it in every epoch."
            )
        weight_refused(self.data, form)
        return IterableStream(functools.partial(_same, self.data), form, not hasattr(self.data, "shard"))

    def batches(self, rows: int | None = None) -> Iterator[Any]:
        return as_batches(iter(self.data), min(FETCH_ROWS, rows or FETCH_ROWS))

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        return not several_inputs


class IterableStream(StreamSource):
    """Rows or batches of an iterable that is recreated for each pass."""

    def __init__(self, create: Callable[[], Iterable[Any]], form: Form, whole: bool = True) -> None:
        self._create, self._trees = create, Trees(form)
        self.whole = whole

    def stream(self, reader: Reader, number: int, size: int) -> Iterator[Tree]:
        def items() -> Iterator[Any]:
            data = self._create()
            return as_batches(iter(data if self.whole else own_shard(data, reader)), size)

        return self._trees(seeded(items, reader.seed, number))


def _same(data: Any) -> Any:
    return data


def own_shard(data: Any, reader: Reader) -> Any:
    """Return the rows of one rank, as the data's method `shard` does."""
    names = inspect.signature(data.shard).parameters
    if "num_shards" in names and "index" in names:
        return data.shard(num_shards=reader.world, index=reader.rank)
    return data.shard(reader.rank, reader.world)


def as_batches(items: Iterator[Any], size: int) -> Iterator[Any]:
    """Yield batches: the items, or rows joined to batches of a size.

    Items are batches if all their arrays have the same number of entries on the first axis.

    >>> [x.tolist() for x, y in as_batches(iter([([1.0, 2.0], 0), ([3.0, 4.0], 1)]), 5)]
    [[[1.0, 2.0], [3.0, 4.0]]]
    >>> [x.tolist() for x, y in as_batches(iter([(np.ones((2, 1)), [0, 1])]), 5)]
    [[[1.0], [1.0]]]
    """
    first = next(items, None)
    if first is None:
        return
    arrays = map(_arrays, itertools.chain([first], items))
    shapes = [np.shape(leaf) for _, leaf in leaves(_arrays(first))]
    if shapes and all(shape and shape[0] == shapes[0][0] for shape in shapes):
        yield from arrays
        return
    while rows := list(itertools.islice(arrays, size)):
        yield tree_map(lambda *parts: np.stack(parts), *rows)


def _arrays(item: Any) -> Any:
    return tree_map(np.asarray, as_arrays(item))
