"""Prefetching: runs an iterator ahead on a thread, so that the next batch is gathered while this one is computed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """Yield the same items in the same order, with at most `depth` of them prefetched.

    >>> list(ahead(iter(range(5))))
    [0, 1, 2, 3, 4]
    """
    box: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    stop = threading.Event()

    def put(kind: str, value: Any) -> None:
        while not stop.is_set():
            try:
                return box.put((kind, value), timeout=0.1)
            except queue.Full:
                continue

    def run() -> None:
        try:
            for item in items:
                put("item", item)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=run, name="orca-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = box.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        # The consumer may stop early: the thread must not wait for it forever.
        stop.set()
        thread.join(5)
