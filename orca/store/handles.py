"""Handles to calls that run in the background: wait for the result, ask whether it is ready, or cancel it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

import numpy as np

from orca.core.arguments import check_number, optional


class Handle:
    """The result of a call that runs in the background.

    >>> start(lambda task: 6 * 7, "answer").get(timeout=10)
    42
    """

    def __init__(self, label: str, task: Task, future: Future[Any]) -> None:
        self._label = label
        self._task = task
        self._future = future

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it.

        Args:
            timeout: Seconds to wait; None for no limit.

        Raises:
            TimeoutError: The call still runs.
            concurrent.futures.CancelledError: The call was cancelled.
        """
        limit = optional(lambda name, value: check_number(name, value, 0, "a number of seconds"))("timeout", timeout)
        try:
            return self._future.result(limit)
        except TimeoutError:
            if self._future.done():  # the call itself has raised it
                raise
            raise TimeoutError(f"timeout={timeout}: {self._label} still runs. Wait longer, or cancel it.") from None

    @property
    def done(self) -> bool:
        """Whether the call has ended, failed or been cancelled."""
        return self._future.done()

    def cancel(self) -> bool:
        """Give up the call; return whether it is cancelled.

        `get` raises at once. The call itself ends before its next phase, and a fit after its current epoch; nothing
        is stored.
        """
        self._task.stop.set()
        if not self._future.done():
            self._future.cancel()
        return self._future.cancelled()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.get(), dtype) if copy else np.asarray(self.get(), dtype)

    def __repr__(self) -> str:
        return f"<Handle: {self._label}, {'done' if self.done else 'running'}>"


class Task:
    """The background side of a handle."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    def check(self) -> None:
        """Raise if the handle was cancelled."""
        if self.stop.is_set():
            raise CancelledError("The call was cancelled.")


def start(work: Callable[[Task], Any], label: str) -> Handle:
    """Run ``work(task)`` on a thread of its own."""
    task = Task()
    future: Future[Any] = Future()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            try:
                result = work(task)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    # The interpreter may end without waiting for the call.
    thread = threading.Thread(target=run, name=f"orca-{label}", daemon=True)
    thread.start()
    return Handle(label, task, future)
