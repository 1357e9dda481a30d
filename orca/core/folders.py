"""Folders on any fsspec path, with writes that have reached the disk when they return."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from orca.errors import DataError


def cache_folder(name: str) -> Path:
    """Return a folder for files that can be recreated: below ORCA_CACHE_DIR, the user's cache or a temporary one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orca"
    folder = Path(os.environ.get("ORCA_CACHE_DIR") or base) / name
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    folder = Path(tempfile.gettempdir()) / f"orca-{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class Folder:
    """A folder on any fsspec path."""

    def __init__(self, path: str) -> None:
        import fsspec

        self.path = str(path)
        self.files, target = fsspec.core.url_to_fs(self.path)
        self.target = str(target).rstrip("/")
        self.is_local = "file" in (
            self.files.protocol if isinstance(self.files.protocol, tuple | list) else [self.files.protocol]
        )

    def names(self) -> list[str]:
        if not self.files.exists(self.target):
            return []
        return [str(entry).rstrip("/").rpartition("/")[2] for entry in self.files.ls(self.target, detail=False)]

    def place(self, name: str) -> str:
        return f"{self.target}/{name}"

    def has(self, name: str) -> bool:
        return bool(self.files.exists(self.place(name)))

    def read(self, name: str) -> bytes:
        if not self.is_local:
            return bytes(self.files.cat_file(self.place(name)))
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BufferedReader:
        """Open a file of a local folder; a fifo or device of that name is refused, not waited for."""
        descriptor = os.open(self.place(name), os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DataError(f"path={self.path!r} is damaged: {name!r} is not a regular file.")
        return os.fdopen(descriptor, "rb")

    @contextlib.contextmanager
    def verified(self, name: str, checksum: str | None) -> Iterator[str]:
        """Provide the path of a file, or of a local copy of it, if its SHA-256 is right; None accepts any content."""
        with contextlib.ExitStack() as stack:
            if self.is_local:
                path = self.place(name)
                file = stack.enter_context(self.open(name))
            else:
                path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "copy")
                self.files.get_file(self.place(name), path)
                file = stack.enter_context(open(path, "rb"))
            if checksum is not None and hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                raise DataError(f"path={self.path!r} is damaged: the checksum of {name!r} does not match.")
            yield path

    def write(self, name: str, content: bytes) -> None:
        """Write a file; on a local disk it has reached the disk when this returns."""
        if not self.is_local:
            self.files.pipe_file(self.place(name), content)
            return
        with open(self.place(name), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def move(self, name: str, new_name: str) -> None:
        if not self.is_local:
            self.files.mv(self.place(name), self.place(new_name))
            return
        os.replace(self.place(name), self.place(new_name))
        descriptor = os.open(self.target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, which another process may have removed already."""
        with contextlib.suppress(FileNotFoundError):
            self.files.rm(self.place(name))

    def age(self, name: str) -> float:
        """Return the age of a file in seconds; 0 where the file system does not say."""
        try:
            return time.time() - float(self.files.modified(self.place(name)).timestamp())
        except Exception:
            return 0.0
