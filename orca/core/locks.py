"""Locks for objects that are copied and pickled."""

from __future__ import annotations

import threading
from types import TracebackType


class OwnLock:
    """A reentrant lock; a copy of the object that holds it gets a new one.

    >>> import copy
    >>> lock = OwnLock()
    >>> with lock, copy.copy(lock) as other:
    ...     other is lock
    False
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> OwnLock:
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[OwnLock], tuple[()]]:
        return OwnLock, ()
