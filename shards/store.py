"""Shard files of this process: one folder per driver; each file is removed with its last reference."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import weakref
from pathlib import Path
from typing import Any

from orca.core.scratch import Scratch, clean_up_when_terminated, scratch
from orca.errors import DataError
from orca.shards.packing import read_file, write_file
from orca.shards.tree import length_of

_PREFIX = "orca-shards-"
_counter = itertools.count()
_folder: Scratch | None = None


class FileShard:
    """A shard in a mapped file. The original object owns the file; a pickled copy only reads it."""

    def __init__(self, path: str, rows: int, owner: bool = True) -> None:
        self.path = path
        self.rows = rows
        self._finalizer = weakref.finalize(self, _remove, path, os.getpid()) if owner else None

    def load(self) -> Any:
        try:
            return read_file(self.path)
        except FileNotFoundError as error:
            raise DataError(
                f"The shard file {self.path} is gone: another program has emptied the temporary directory. Create the "
                "XShards again, and set the environment variable TMPDIR to a folder that nobody empties."
            ) from error

    def free(self) -> None:
        """Remove the file now; processes that have mapped it keep their views."""
        if self._finalizer is not None:
            self._finalizer()

    def __reduce__(self) -> tuple[Any, ...]:
        return FileShard, (self.path, self.rows, False)


def _remove(path: str, pid: int) -> None:
    # A forked child inherits the finalizers but not the ownership.
    if pid == os.getpid():
        Path(path).unlink(missing_ok=True)
        if _folder is not None and Path(path).parent != _folder.path:
            # The results of one map have a folder of their own, which goes with its last file.
            with contextlib.suppress(OSError):
                Path(path).parent.rmdir()


def folder() -> Path:
    """Return the folder of this process's shard files, created on first use and removed at exit."""
    global _folder
    if _folder is None or _folder.pid != os.getpid() or not _folder.path.exists():
        # The folder is gone if somebody has emptied the temporary directory.
        _folder = scratch(_PREFIX)
        clean_up_when_terminated()
    return _folder.path


@atexit.register
def remove_folder() -> None:
    """Remove the folder with everything in it."""
    global _folder
    if _folder is not None:
        _folder.remove()
        _folder = None


def new_path(inside: str | None = None) -> str:
    """Return a path for a new shard file that no other process can choose."""
    return os.path.join(inside or str(folder()), f"{os.getpid()}-{next(_counter)}.shard")


def keep(shard: Any) -> FileShard:
    """Write a shard to a new file of this process."""
    path = new_path()
    write_file(path, shard)
    return FileShard(path, length_of(shard))
