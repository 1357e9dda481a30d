"""The log file of a local rank: it holds the rank's last output, and printing to it never fails."""

from __future__ import annotations

import contextlib
import io
import os
import sys

_MAX_BYTES = 4 << 20
_KEPT_BYTES = 64 << 10


class RankLog:
    """A file for standard output and error that is cut to its last lines when it becomes long."""

    def __init__(self, path: str, max_bytes: int = _MAX_BYTES) -> None:
        # Everybody appends, native code too: after a cut, the next line is written at the new end.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._max_bytes = max_bytes
        self._unchecked_bytes = 0

    def replace_output(self) -> None:
        """Send the output of this process to the file, that of native code included."""
        os.dup2(self._descriptor, 1)
        os.dup2(self._descriptor, 2)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(_Writer(self, number), errors="replace", line_buffering=True)  # type: ignore[type-var]
            for number in (1, 2)
        )

    def write(self, data: bytes) -> None:
        """Append to the file; where the disk is full, drop what the file holds, and this if need be."""
        self._unchecked_bytes += len(data)
        if self._unchecked_bytes > self._max_bytes // 4:
            self.trim()
        try:
            os.write(self._descriptor, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                os.write(self._descriptor, data[-_KEPT_BYTES:])

    def trim(self) -> None:
        """Cut the file to its last lines if it is long."""
        self._unchecked_bytes = 0
        with contextlib.suppress(OSError):
            size = os.fstat(self._descriptor).st_size
            if size > self._max_bytes:
                end = os.pread(self._descriptor, _KEPT_BYTES, size - _KEPT_BYTES)
                os.ftruncate(self._descriptor, 0)
                os.write(self._descriptor, end)


class _Writer(io.RawIOBase):
    """What Python's own streams write to."""

    def __init__(self, log: RankLog, descriptor: int) -> None:
        self._log = log
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        self._log.write(bytes(data))
        return len(data)

    def fileno(self) -> int:
        return self._descriptor
