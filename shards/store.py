"""Shard files of this process: one folder per driver, each file freed with its last reference."""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from orca.shards.packing import read_file, write_file
from orca.shards.tree import row_count

_PREFIX = "orca-shards-"
_counter = itertools.count()
_folder: Scratch | None = None


class FileShard:
    """A shard in a mapped file. The object that created it owns the file; a pickled copy only reads it."""

    def __init__(self, path: str, rows: int, owner: bool = True) -> None:
        self.path = path
        self.rows = rows
        if owner:
            weakref.finalize(self, _remove, path, os.getpid())

    def load(self) -> Any:
        return read_file(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileShard, (self.path, self.rows, False)


def _remove(path: str, pid: int) -> None:
    # A forked child inherits the finalizers but not the ownership.
    if pid == os.getpid():
        Path(path).unlink(missing_ok=True)


@dataclass
class Scratch:
    """A folder that is locked for as long as its process lives, so that others can tell it from a left one."""

    path: Path
    lock: TextIO
    pid: int

    def remove(self) -> None:
        if self.pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            self.lock.close()


def scratch(prefix: str = _PREFIX) -> Scratch:
    """Make a locked folder, and remove those of the same prefix whose process was killed."""
    for left in Path(tempfile.gettempdir()).glob(prefix + "*"):
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


def folder() -> Path:
    """The folder of this process's shard files, made on first use and removed at exit."""
    global _folder
    if _folder is None or _folder.pid != os.getpid():
        _folder = scratch()
    return _folder.path


@atexit.register
def remove_folder() -> None:
    """Remove the folder with everything in it."""
    global _folder
    if _folder is not None:
        _folder.remove()
        _folder = None


def new_path(inside: str | None = None) -> str:
    """A name for a new shard file that no other process can choose."""
    return os.path.join(inside or str(folder()), f"{os.getpid()}-{next(_counter)}.shard")


def keep(shard: Any) -> FileShard:
    """Write a shard to a file of this process."""
    path = new_path()
    write_file(path, shard)
    return FileShard(path, row_count(shard))
