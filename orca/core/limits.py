"""Limits of the machine that a program runs into: a full disk, too many open files, no free port."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from orca.errors import ResourceError

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FILES = {errno.EMFILE, errno.ENFILE}
_PORTS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}


_FEW = 100
"""Descriptors that every limit has room for."""


def allow_files(count: int) -> None:
    """Raise this process's soft limit on open files, as far as it may, so that many more can be opened.

    A few more never change the limit, which may be low on purpose.

    >>> allow_files(10)
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count <= _FEW or soft == resource.RLIM_INFINITY:
        return
    wanted = len(os.listdir("/proc/self/fd")) + count + _FEW if os.path.isdir("/proc/self/fd") else soft + count
    if wanted > soft:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


@contextmanager
def explained_limits(folder: str | None = None, size: int | None = None) -> Iterator[None]:
    """Turn an error that means an exhausted limit into a ResourceError that says which one and what to do.

    Args:
        folder: Where a file is written, if one is.
        size: The bytes to be written, if known.

    >>> try:
    ...     with explained_limits("/data", 4096):
    ...         raise OSError(errno.ENOSPC, "No space left on device")
    ... except ResourceError as error:
    ...     print(str(error).partition(". ")[0])
    There is no room for 4,096 bytes in /data (No space left on device)
    """
    try:
        yield
    except OSError as error:
        advice = _advice(error, folder, size)
        if advice is None:
            raise
        raise ResourceError(advice) from error


def _advice(error: OSError, folder: str | None, size: int | None) -> str | None:
    if error.errno in _DISK:
        where = folder or (os.path.dirname(os.fsdecode(error.filename)) if error.filename else "a folder")
        wanted = "" if size is None else f" for {size:,} bytes"
        return (
            f"There is no room{wanted} in {where} ({error.strerror}). Free some, or use a larger file system: the "
            "environment variable TMPDIR, set before Python starts, names the one for temporary files."
        )
    if error.errno in _FILES:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"This process may not open more than {limit} files ({error.strerror}). Raise the limit with ulimit -n, or "
            "close files and connections that the program no longer needs."
        )
    if error.errno in _PORTS:
        return (
            f"This host has no free port ({error.strerror}). End programs that hold many connections, or "
            "widen the range in net.ipv4.ip_local_port_range."
        )
    return None
