"""Temporary folders that are locked while their process lives, so that those of killed processes get swept."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass
class Scratch:
    """A temporary folder and the lock that says it is in use."""

    path: Path
    lock: TextIO
    pid: int

    def remove(self) -> None:
        """Remove the folder; a forked child, which inherits the object but not the ownership, does nothing."""
        if self.pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            self.lock.close()


def scratch(prefix: str, sweep: str | None = None) -> Scratch:
    """Make a locked folder, and remove those of the same prefix (or of `sweep`) whose process was killed."""
    for left in Path(tempfile.gettempdir()).glob((sweep or prefix) + "*"):
        try:
            with open(left / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue
    made = Path(tempfile.mkdtemp(prefix=".orca-new-"))
    # The folder gets its real name only with the lock held, so that no sweep can find it unlocked.
    lock = open(made / "lock", "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    return Scratch(made.rename(made.with_name(prefix + made.name.rpartition("-")[2])), lock, os.getpid())
