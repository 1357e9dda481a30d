"""Unix sockets for ps-lite where all ranks share a host: other users of the machine cannot connect to them.

ps-lite authenticates nobody, and a message that it does not understand ends its process. With ``DMLC_LOCAL`` it opens
``/tmp/<port>`` instead of a TCP port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_FOLDER = Path("/tmp")
"""Where ps-lite creates its sockets, whatever TMPDIR says."""
_PRIVATE = 0o077
_STALE_SECONDS = 60.0
"""A younger socket may belong to a rank that does not listen yet."""


def path_of(port: int) -> Path:
    """Return where ps-lite listens for this port number."""
    return _FOLDER / str(port)


def remove(port: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        path_of(port).unlink()


@contextlib.contextmanager
def private() -> Iterator[None]:
    """Create files within this context so that only this user can open them."""
    before = os.umask(_PRIVATE)
    try:
        yield
    finally:
        os.umask(before)


def sweep() -> None:
    """Remove the sockets that killed ranks of this user have left behind."""
    for path in _FOLDER.iterdir():
        if not path.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            about = path.lstat()
            stale = time.time() - about.st_mtime > _STALE_SECONDS
            if stale and stat.S_ISSOCK(about.st_mode) and about.st_uid == os.getuid() and _refuses(path):
                path.unlink()


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
