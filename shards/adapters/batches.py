"""Data sets of a framework: read once, on the driver, and stored shard by shard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orca.errors import DataError
from orca.shards.adapters.arrays import RowsAdapter, to_tree
from orca.shards.adapters.base import Form
from orca.shards.tree import Tree, join_rows, size_in_bytes
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class BatchesAdapter(RowsAdapter):
    """Base of data sets that yield batches."""

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """Yield the rows as batches of arrays."""

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> XShards:
        if form.weight_col is not None:
            kind = type(self.data).__name__
            raise DataError(f"sample_weight={form.weight_col!r}: a {kind} has no columns to take it from.")
        batch_form = replace(form, labels=None, weights=None)
        trees = (to_tree(tuple(batch) if isinstance(batch, list) else batch, batch_form) for batch in self.batches())
        shards = store_stream(trees, engine, engine.shard_bytes)
        if shards is None:
            raise DataError(f"{form.argument}= gave no rows.")
        return shards


def store_stream(trees: Iterator[Tree], engine: Engine, shard_bytes: int) -> XShards | None:
    """Store one structure of rows after another, joined to shards of about a size; None if there are none."""
    shards: XShards | None = None
    for tree in _grouped(trees, shard_bytes):
        parts = engine.put([tree])
        shards = XShards(engine, parts if shards is None else engine.extend(shards.parts, parts))
    return shards


def _grouped(trees: Iterator[Tree], shard_bytes: int) -> Iterator[Tree]:
    group: list[Tree] = []
    size = 0
    for tree in trees:
        group.append(tree)
        size += size_in_bytes(tree)
        if size >= shard_bytes:
            yield join_rows(group)
            group, size = [], 0
    if group:
        yield join_rows(group)
