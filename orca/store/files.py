"""The files of a store, in a folder or a bucket: drafts, the move to their final place, verified reads.

A draft is written below ``drafts/<writer>``. Its files have reached the disk before they are moved, and they are moved
inside the transaction that names them: whatever interrupts a writer, no row ever names a missing file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orca.core.folders import Folder
from orca.core.limits import explained_limits
from orca.errors import DataError

DRAFTS = "drafts"
_BLOCK = 1 << 20
_TRIES = 5


class Files:
    """The folder or bucket of a store. Paths are relative to it."""

    def __init__(self, path: str) -> None:
        self.folder = Folder(path)
        self.is_local = self.folder.is_local
        self.root = Path(self.folder.target) if self.is_local else None

    def create(self) -> None:
        """Create the folder if it does not exist."""
        self.folder.files.makedirs(self.folder.target, exist_ok=True)

    def place(self, path: str) -> str:
        """Return a path as the file system knows it."""
        return self.folder.place(path)

    def url(self, path: str) -> str:
        """Return a path that any process can open with fsspec."""
        return self.place(path) if self.is_local else str(self.folder.files.unstrip_protocol(self.place(path)))

    # Writing

    @contextmanager
    def draft(self, writer: str) -> Iterator[Path]:
        """Provide an empty folder of this machine, whose files `stage` makes durable."""
        if self.root is not None:
            folder = self.root / DRAFTS / writer
            folder.mkdir(parents=True)
            try:
                with explained_limits(str(folder)):
                    yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
        with tempfile.TemporaryDirectory(prefix="orca-draft-") as temporary:
            try:
                yield Path(temporary)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    self.remove(f"{DRAFTS}/{writer}")

    def stage(self, writer: str, draft: Path) -> None:
        """Write a draft to the disk or the bucket, file by file."""
        for path in sorted(draft.rglob("*")):
            if self.is_local:
                sync(path)
            elif path.is_file():
                target = self.place(f"{DRAFTS}/{writer}/{path.relative_to(draft).as_posix()}")
                self.folder.files.put_file(str(path), target)
        if self.is_local:
            sync(draft)

    def move(self, writer: str, target: str, names: Iterable[str]) -> None:
        """Move a staged draft to its final folder, in place of leftovers of a writer that was killed."""
        if self.root is not None:
            final = self.root / target
            if final.exists():
                shutil.rmtree(final)
            for attempt in range(_TRIES):
                _make_durable(final.parent, self.root)
                try:
                    os.rename(self.root / DRAFTS / writer, final)
                    break
                except FileNotFoundError:
                    # A drop of the last version may have removed the folder again.
                    if attempt + 1 == _TRIES:
                        raise
            sync(final.parent)
            return
        self.remove(target)
        for name in names:
            self.folder.files.copy(self.place(f"{DRAFTS}/{writer}/{name}"), self.place(f"{target}/{name}"))

    def remove(self, path: str) -> None:
        """Remove a file or folder, if it exists, and the folders above it that are empty then."""
        if self.root is None:
            with contextlib.suppress(FileNotFoundError):
                self.folder.files.rm(self.place(path), recursive=True)
            return
        target = self.root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)
        for parent in target.parents:
            if parent in (self.root, *self.root.parents):
                break
            try:
                parent.rmdir()
            except OSError:
                break

    # Reading

    def walk(self, path: str) -> list[str]:
        """Return the paths of all files below a folder, in order."""
        if self.root is not None:
            base = self.root / path
            entries = [Path(folder) / name for folder, _, names in os.walk(base) for name in names]
            return sorted(entry.relative_to(self.root).as_posix() for entry in entries)
        top = self.folder.target
        self.folder.files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return sorted(str(name)[len(top) + 1 :] for name in self.folder.files.find(self.place(path)))
        return []

    def checksum(self, path: str) -> str:
        """Return the SHA-256 of a file.

        Raises:
            FileNotFoundError: There is no such file.
            DataError: It is not a regular file inside of the store.
        """
        digest = hashlib.sha256()
        with self.open(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    def open(self, path: str) -> Any:
        """Open a file; links, which may lead out of the store, and devices are refused."""
        if self.root is None:
            return self.folder.files.open(self.place(path), "rb")
        self.check_inside(path)
        descriptor = os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DataError(f"{path!r} of the store is not a regular file.")
        return os.fdopen(descriptor, "rb")

    def check_inside(self, path: str) -> None:
        """Raise if a path of a local store is a link, or below one: its target may be anywhere."""
        if self.root is None:
            return
        target = self.root / path
        if target.is_symlink() or target.parent.resolve() != (self.root.resolve() / path).parent:
            raise DataError(f"{path!r} of the store is a link, or below one: its target is not opened.")

    def check(self, path: str, sha256: str) -> None:
        """Raise unless a file has this checksum."""
        try:
            actual = self.checksum(path)
        except FileNotFoundError as error:
            raise DataError(f"The store is damaged: {path!r} is missing.") from error
        if actual != sha256:
            raise DataError(f"The store is damaged: {path!r} has SHA-256 {actual}; its manifest says {sha256}.")

    def fetch(self, path: str, sha256: str, target: Path) -> None:
        """Copy a file to this machine; raise unless it has this checksum."""
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        try:
            with self.open(path) as source, open(target, "wb") as copy:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    copy.write(block)
        except FileNotFoundError as error:
            raise DataError(f"The store is damaged: {path!r} is missing.") from error
        if digest.hexdigest() != sha256:
            raise DataError(
                f"The store is damaged: {path!r} has SHA-256 {digest.hexdigest()}; its manifest says {sha256}."
            )


def checksum_of(path: Path) -> str:
    """Return the SHA-256 of a file of this machine."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_durable(folder: Path, root: Path) -> None:
    """Create a folder below `root`, with its entry in each parent on the disk."""
    missing = [parent for parent in (folder, *folder.parents) if root in parent.parents and not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        sync(parent.parent)
