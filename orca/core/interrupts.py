"""Work that an interrupt must not leave half done."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


class _Task:
    """Work that runs once, in whichever thread gets to it first."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._claim = threading.Lock()
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


def run_to_end(work: Callable[[], None]) -> None:
    """Run `work` to its end; an interrupt that arrives meanwhile is raised afterwards.

    Python delivers signals to the main thread only, so the work runs in another one.

    >>> run_to_end(lambda: print("cleaned up"))
    cleaned up
    """
    task = _Task(work)
    interrupt: BaseException | None = None
    while not task.done.is_set():
        try:
            if threading.current_thread() is not threading.main_thread():
                task.run()
            else:
                _start(task)
            task.done.wait()
        except BaseException as error:
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt
    if task.error is not None:
        raise task.error


def _start(task: _Task) -> None:
    try:
        _thread.start_new_thread(task.run, ())
    except RuntimeError:  # the interpreter shuts down, or no more threads are allowed
        task.run()
