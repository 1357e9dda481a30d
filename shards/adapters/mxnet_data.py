"""MXNet's DataIter and Gluon's DataLoader; rows that only pad a batch are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from orca.errors import DataError
from orca.shards.adapters.base import Form
from orca.shards.adapters.batches import BatchesAdapter, weight_refused
from orca.shards.adapters.iterables import IterableStream
from orca.shards.on_rank import Source


class MXNetAdapter(BatchesAdapter):
    """A DataIter or a Gluon DataLoader."""

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("mxnet.") and base.__name__ in ("DataIter", "DataLoader")
            for base in type(data).__mro__
        )

    def batches(self, rows: int | None = None) -> Iterator[Any]:
        return batches(self.data)

    def created(self, creator: Callable[[], Any], form: Form) -> Source:
        weight_refused(self.data, form)
        return IterableStream(self.batches, form)

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        # An iterator knows whether it has labels; a pair of a loader may be two inputs.
        labels = getattr(self.data, "provide_label", None)
        return not several_inputs if labels is None else bool(labels)


class WholeStore:
    """The KVStore of a creator ``fn(config, kv)`` that asks which part of the data to return: all of it.

    Every worker calls the creator, and takes its share of the rows: each row is used by one of them per epoch.
    """

    rank = 0
    num_workers = 1
    type = "dist_sync"


def batches(source: Any) -> Iterator[Any]:
    """Yield the source's rows as batches of arrays."""
    _refuse_rolling(source)
    if hasattr(source, "provide_data"):
        source.reset()
        for batch in source:
            rows = batch.data[0].shape[0] - (batch.pad or 0)
            features, labels = (
                _few([value.asnumpy()[:rows] for value in part or ()]) for part in (batch.data, batch.label)
            )
            yield features if labels is None else (features, labels)
        source.reset()
        return
    for batch in source:
        yield _arrays(batch)


def _refuse_rolling(source: Any) -> None:
    """Refuse iterators that keep their last rows for the next pass: the data is read once."""
    sampler = getattr(source, "_batch_sampler", None)
    if getattr(source, "last_batch_handle", None) == "roll_over":
        raise DataError('last_batch_handle="roll_over" keeps rows back, and the data is read once: use "pad".')
    if getattr(sampler, "_last_batch", None) == "rollover":
        raise DataError('last_batch="rollover" keeps rows back, and the data is read once: use "keep".')
    inner = getattr(source, "data_iter", None)
    for part in (*(getattr(source, "iters", None) or ()), *([inner] if inner is not None else ())):
        _refuse_rolling(part)


def _few(arrays: list[Any]) -> Any:
    return None if not arrays else arrays[0] if len(arrays) == 1 else tuple(arrays)


def _arrays(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_arrays(part) for part in value)
    if not hasattr(value, "asnumpy"):
        raise DataError(f"The DataLoader yields a {type(value).__name__}; expected NDArrays.")
    return value.asnumpy()
