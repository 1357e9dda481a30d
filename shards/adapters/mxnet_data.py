"""MXNet's DataIter and gluon DataLoader as arrays; each row is fetched once, rows that only fill a batch not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orca.errors import DataError


class DriverStore:
    """Stands for the KVStore where a creator ``fn(config, kv)`` asks which part of the data to give: all of it.

    The creator is called once. Its rows are then dealt out to the workers, each row to one of them in an epoch.
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
    """An iterator that keeps its last rows for the next pass would never give them: it is read once."""
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
        raise DataError(f"The DataLoader gives a {type(value).__name__}; expected NDArrays.")
    return value.asnumpy()
