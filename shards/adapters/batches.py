"""Data sets that yield batches: sent to the ranks, or read once, on the driver, and stored shard by shard."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orca.core.pickling import check_picklable
from orca.errors import DataError
from orca.shards.adapters.arrays import RowsAdapter, flat_parts, to_tree
from orca.shards.adapters.base import Feedable, Form, Place
from orca.shards.adapters.checking import RowChecker
from orca.shards.on_rank import SentSource, Source
from orca.shards.tree import Tree, join_rows, row_count, size_in_bytes, take_rows
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine

_log = logging.getLogger("orca")

FIRST_WARNING_SECONDS = 30.0
"""Reading for that long without an end is worth a message, and again after twice that time."""
_DISK_LEFT = 0.05
"""Part of the temporary folder's disk that a data set of unknown length does not fill."""
_LARGE_BYTES = 1 << 30
"""What a data set may take of a disk that others have filled."""


class BatchesAdapter(RowsAdapter):
    """Base of data sets that yield batches."""

    ends: bool = True
    """Whether the data set is known to end."""

    @abstractmethod
    def batches(self, rows: int | None = None) -> Iterator[Any]:
        """Yield the rows as batches of arrays; no more than `rows` are needed."""

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        source = self.source(form)
        return self.stored(form, engine) if source is None else send(source, self.data, form, engine)

    def _on_engine(self, form: Form, place: Place) -> XShards:
        # A prediction needs each row once, in order: it is read here.
        if self._stored is None:
            self._stored = self.stored(form, place.engine)
        return self._stored

    def stored(self, form: Form, engine: Engine) -> XShards:
        """Read all rows in this process, and store them on an engine."""
        kind = type(self.data).__name__
        weight_refused(self.data, form)
        batch_form = replace(form, labels=None, weights=None)
        most = None if self.ends else form.most_rows
        check = RowChecker(form)
        trees: Iterator[Tree] = (check(to_tree(labelled(batch, form), batch_form)) for batch in self.batches(most))
        if most is not None:
            trees = _first(trees, most)
        elif not self.ends:
            trees = _watched(trees, f"{form.argument}= is a {kind}", engine.name == "local")
        shards = store_stream(trees, engine, engine.shard_bytes)
        if shards is None:
            raise DataError(f"{form.argument}= gave no rows.")
        check.finish()
        return shards


def weight_refused(data: object, form: Form) -> None:
    """Raise if the weights of rows are named as a column, which such data does not have."""
    if form.weight_col is not None:
        raise DataError(f"sample_weight={form.weight_col!r}: a {type(data).__name__} has no columns to take it from.")


def send(source: Source, data: object, form: Form, engine: Engine) -> SentSource:
    """Store a source of the ranks as the only shard."""
    try:
        return SentSource(XShards(engine, engine.put([source])))
    except Exception:
        check_picklable(**{form.argument: data})
        raise


def labelled(batch: Any, form: Form) -> Any:
    """Return a batch with its labels apart, if it is a list (feature, feature, …, label).

    Without labels that are needed, all of it are features unless there is one array more than the model has inputs.
    """
    if isinstance(batch, list):
        batch = tuple(batch)
    flat = flat_parts(batch, form)
    if flat is not None:
        return flat
    if not isinstance(batch, tuple) or len(batch) < 3 or (form.triples and len(batch) == 3):
        return batch
    if form.need_labels:
        return batch[:-1], batch[-1]
    return {"x": batch[:-1]} if form.inputs == len(batch) - 1 else {"x": batch}


def _first(trees: Iterator[Tree], rows: int) -> Iterator[Tree]:
    """Yield the first rows only."""
    for tree in trees:
        count = row_count(tree)
        yield tree if count <= rows else take_rows(tree, 0, rows)
        rows -= count
        if rows <= 0:
            return


def _watched(trees: Iterator[Tree], data: str, on_disk: bool) -> Iterator[Tree]:
    """Yield all rows; say what is going on if that takes long, and stop before the disk is full."""
    began = time.monotonic()
    wait, rows, size = FIRST_WARNING_SECONDS, 0, 0
    advice = "Does it end? Pass steps_per_epoch= or max_steps= to fit to read only the rows that these steps need."
    for tree in trees:
        rows += row_count(tree)
        size += size_in_bytes(tree)
        yield tree
        seconds = time.monotonic() - began
        if seconds > wait:
            wait *= 2
            _log.warning("%s: %d rows (%.1f GB) read in %.0f s so far. %s", data, rows, size / 1e9, seconds, advice)
        if on_disk:
            disk = shutil.disk_usage(tempfile.gettempdir())
            if size > _LARGE_BYTES and disk.free < _DISK_LEFT * disk.total:
                raise DataError(
                    f"{data}: after {rows} rows ({size / 1e9:.1f} GB) the disk of {tempfile.gettempdir()} is nearly "
                    f"full. {advice} For more data than that, set TMPDIR to a folder on a larger disk."
                )


def store_stream(trees: Iterator[Tree], engine: Engine, shard_bytes: int) -> XShards | None:
    """Store one structure of rows after another, joined to shards of about a size; None if there are none."""
    shards: XShards | None = None
    try:
        for tree in _grouped(trees, shard_bytes):
            parts = engine.put([tree])
            shards = XShards(engine, parts if shards is None else engine.extend(shards.parts, parts))
    except BaseException:
        if shards is not None:
            shards.free()
        raise
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
