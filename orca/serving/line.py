"""The waiting line of a model: requests that wait while another is computed are joined into one batch, without a timer.

A batch takes all requests that are there when it starts. So many clients share the cost of a batch. A single client
waits for nothing: if nobody joined a request, the next ones do not wait for others. Tiny computations run at once, and
short ones on the event loop, as a hand-over to a thread takes longer than they do; others run on a thread of the model.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from orca.serving.engine import Engine
from orca.serving.messages import HttpError
from orca.serving.metrics import count_rows

Array = np.ndarray[Any, Any]
_SHORT = 0.002
"""Seconds that the event loop may be blocked by a computation."""
_TINY = 0.000_03
"""Seconds below which a computation is cheaper than the wait for others to join."""
_ALONE = 31
"""Requests that are computed at once after one that nobody joined."""


class _Entry:
    """A request in the line."""

    __slots__ = ("arrays", "future", "rows", "shapes")

    def __init__(self, arrays: Sequence[Array], future: asyncio.Future[list[Array]]) -> None:
        self.arrays = arrays
        self.future = future
        self.rows = len(arrays[0]) if arrays and arrays[0].ndim else 1
        self.shapes = tuple([array.shape[1:] for array in arrays])


class Line:
    """Computes the requests of one model, one batch after the other."""

    def __init__(self, engine: Engine, most: int, join: int, model: str) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "inference")
        self._most = most
        self._join = join
        self._entries: deque[_Entry] = deque()
        self._busy = False
        self._alone = 0
        """Requests that do not wait for others, because none joined the last one that did."""
        self._loop = asyncio.get_running_loop()
        self._model = model

    async def compute(self, arrays: Sequence[Array], timeout: float) -> list[Array]:
        """Return the outputs for arrays that have been checked against the signature."""
        if not self._busy and self._engine.is_steady:
            rows = len(arrays[0])
            seconds = self._engine.row_seconds * rows
            if seconds < _TINY or (self._alone and seconds < _SHORT):
                self._alone = max(0, self._alone - 1)
                count_rows(self._model, rows)
                return self._engine.run(arrays)
        if len(self._entries) >= self._most:
            text = f"{self._most} requests are waiting, the limit of this server (--queue)."
            raise HttpError(503, text, [(b"retry-after", b"1")])
        future: asyncio.Future[list[Array]] = self._loop.create_future()
        self._entries.append(_Entry(arrays, future))
        if not self._busy:
            # Not at once: requests that arrived together then form one batch.
            self._busy = True
            self._loop.call_soon(self._next)
        timer = self._loop.call_later(timeout, _expire, future, timeout)
        try:
            return await future
        finally:
            timer.cancel()

    async def stop(self, seconds: float) -> bool:
        """Wait for the running computation; return whether it ended."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        deadline = self._loop.time() + seconds
        while self._busy and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        return not self._busy

    def _next(self) -> None:
        batch = self._take()
        if not batch:
            self._busy = False
            return
        rows = sum(entry.rows for entry in batch)
        count_rows(self._model, rows)
        if self._engine.is_steady and self._engine.row_seconds * rows < _SHORT:
            self._alone = _ALONE if len(batch) == 1 and not self._entries else 0
            _deliver(batch, _results(self._engine, batch))
            self._loop.call_soon(self._next)
        else:
            work = self._loop.run_in_executor(self._thread, _results, self._engine, batch)
            work.add_done_callback(lambda done: self._finish(batch, done))

    def _finish(self, batch: list[_Entry], work: asyncio.Future[list[Any]]) -> None:
        if work.cancelled() or work.exception() is not None:  # the process is ending
            results: list[Any] = [HttpError(503, "The server is shutting down.")] * len(batch)
        else:
            results = work.result()
        _deliver(batch, results)
        self._next()

    def _take(self) -> list[_Entry]:
        """Take the first entry and those behind it that can be computed with it."""
        entries = self._entries
        while entries and entries[0].future.done():
            entries.popleft()
        if not entries:
            return []
        batch = [entries.popleft()]
        rows, shapes = batch[0].rows, batch[0].shapes
        while entries and entries[0].shapes == shapes and rows + entries[0].rows <= self._join:
            entry = entries.popleft()
            if not entry.future.done():
                batch.append(entry)
                rows += entry.rows
        return batch


def _expire(future: asyncio.Future[list[Array]], seconds: float) -> None:
    if not future.done():
        future.set_exception(HttpError(504, f"No result within {seconds:g} s, the limit of this server (--timeout)."))


def _results(engine: Engine, batch: list[_Entry]) -> list[Any]:
    """Return the outputs of each request, or the exception that it raised."""
    if len(batch) == 1:
        try:
            return [engine.run(batch[0].arrays)]
        except Exception as error:
            return [error]
    try:
        joined = [np.concatenate(arrays) for arrays in zip(*(entry.arrays for entry in batch), strict=True)]
        outputs = engine.run(joined)
    except Exception:
        # One request must not fail because of another.
        return [result for entry in batch for result in _results(engine, [entry])]
    ends = itertools.accumulate(entry.rows for entry in batch)
    return [[output[end - entry.rows : end] for output in outputs] for entry, end in zip(batch, ends, strict=True)]


def _deliver(batch: list[_Entry], results: list[Any]) -> None:
    for entry, result in zip(batch, results, strict=True):
        if entry.future.done():
            continue
        if isinstance(result, BaseException):
            entry.future.set_exception(result)
        else:
            entry.future.set_result(result)
