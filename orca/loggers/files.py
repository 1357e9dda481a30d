"""Log files on any fsspec path."""

from __future__ import annotations

import os
from typing import Any

from orca.errors import ArgumentError


class LogFile:
    """A growing file on any fsspec path; its bytes are readable as soon as a method returns."""

    def __init__(self, path: str) -> None:
        import fsspec

        self._files, self._target = fsspec.core.url_to_fs(path)
        if self._files.isdir(self._target):
            raise ArgumentError(f"path={path!r} is a folder. Name a file in it.")
        parent = self._files._parent(self._target)
        if parent and not self._files.exists(parent):
            self._files.makedirs(parent, exist_ok=True)
        protocol = self._files.protocol
        self._is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def read(self) -> bytes:
        """Return the whole content, empty if the file does not exist."""
        return bytes(self._files.cat_file(self._target)) if self._files.exists(self._target) else b""

    def write(self, data: bytes) -> None:
        """Replace the content."""
        if self._is_local:
            # Moved into place, so that a crash meanwhile leaves the old lines; a link stays a link.
            target = os.path.realpath(self._target)
            draft = f"{target}.{os.getpid()}.draft"
            with open(draft, "wb") as handle:
                handle.write(data)
            os.replace(draft, target)
        else:
            self._files.pipe_file(self._target, data)

    def append(self, data: bytes) -> None:
        """Add to the content."""
        # Only where appending is known to work: object stores may accept mode "ab" and still overwrite.
        if self._is_local:
            with open(self._target, "ab") as handle:
                handle.write(data)
        else:
            self._files.pipe_file(self._target, self.read() + data)


def check_path(path: Any) -> str:
    """Return a path or URL as a string."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ArgumentError(f'path={path!r}: expected a path or a URL, such as "runs/log" or "s3://bucket/runs/log".')
    return str(path)


def join_path(path: str, *names: str) -> str:
    """Join a path and the names below it, skipping empty ones.

    >>> join_path("s3://bucket/runs/", "", "train")
    's3://bucket/runs/train'
    """
    return "/".join([path.rstrip("/"), *(name.strip("/") for name in names if name.strip("/"))])
