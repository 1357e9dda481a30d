"""Temporary folders that are locked while their process lives, so that those of killed processes can be removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from orca.core.limits import explained_limits

PREFIXES = ("orca-gang-", "orca-shards-", "orca-spool-")
"""Of the folders that other modules create."""


@dataclass(eq=False)
class Scratch:
    """A temporary folder and the lock that marks it as in use."""

    path: Path
    lock: TextIO
    pid: int

    def remove(self) -> None:
        """Remove the folder; does nothing in a forked child, which inherits the object but not the folder."""
        if self.pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            self.lock.close()
        _live.discard(self)


_live: set[Scratch] = set()


def sweep(prefix: str) -> None:
    """Remove this user's folders with a prefix whose process was killed."""
    for stale in Path(tempfile.gettempdir()).glob(prefix + "*"):
        try:
            if stale.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            # Another user may have put a fifo or a link there: neither is waited for or followed.
            descriptor = os.open(stale / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with os.fdopen(descriptor) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stale, ignore_errors=True)
        except OSError:
            continue


def scratch(prefix: str, sweep_prefix: str | None = None) -> Scratch:
    """Create a locked folder, and remove those with the same prefix (or `sweep_prefix`) whose process was killed."""
    sweep(sweep_prefix or prefix)
    with explained_limits(tempfile.gettempdir()):
        os.makedirs(tempfile.gettempdir(), exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".orca-new-"))
        # The folder gets its final name only with the lock held, so that no sweep can find it unlocked.
        lock = open(folder / "lock", "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    owned = Scratch(folder.rename(folder.with_name(prefix + folder.name.rpartition("-")[2])), lock, os.getpid())
    _live.add(owned)
    return owned


def clean_up_when_terminated() -> None:
    """Let SIGTERM, with which job managers end programs, remove the folders too, unless the program handles it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    for folder in list(_live):
        folder.remove()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def write_pieces(path: str, parts: Iterable[bytes | memoryview]) -> int:
    """Write pieces to a new file without buffering, and remove it if one fails; return its size in bytes."""
    size = 0
    try:
        with open(path, "wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part).cast("B")
                with explained_limits(os.path.dirname(path), view.nbytes):
                    while view.nbytes:
                        written = file.write(view)
                        assert written
                        size += written
                        view = view[written:]
    except BaseException:
        if os.path.exists(path):
            os.unlink(path)
        raise
    return size
