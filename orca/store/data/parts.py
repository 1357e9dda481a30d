"""Part files of a dataset: written under a name that no other writer uses, durable before a manifest names them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orca.core.limits import explained_limits
from orca.store.files import Files, checksum_of, sync

_TRIES = 5


@dataclass
class Part:
    """A part file: where to write it, and afterwards its entry for the manifest."""

    path: Path
    entry: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartWriter:
    """Writes the parts of one put. Picklable, so that workers can write the shards that they hold."""

    store: str
    """The path of the store."""
    folder: str
    writer: str

    @contextmanager
    def part(self, label: str, ending: str, rows: int) -> Iterator[Part]:
        """Provide the path of a new file on this machine; when the block ends, the file is durable and described."""
        files = Files(self.store)
        name = f"{self.folder}/{self.writer}-{label}.{ending}"
        if files.root is not None:
            part = Part(_new(files.root / name))
            with explained_limits(str(part.path.parent)):
                yield part
            sync(part.path)
            sync(part.path.parent)
            part.entry = _entry(name, part.path, rows)
            return
        with tempfile.TemporaryDirectory(prefix="orca-part-") as temporary:
            part = Part(Path(temporary) / f"part.{ending}")
            yield part
            part.entry = _entry(name, part.path, rows)
            files.folder.files.put_file(str(part.path), files.place(name))


def _new(path: Path) -> Path:
    """Create an empty file and the folders above it, which another process may be removing because they are empty."""
    for attempt in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            break
        except FileNotFoundError:
            if attempt + 1 == _TRIES:
                raise
    return path


def _entry(name: str, path: Path, rows: int) -> dict[str, Any]:
    return {"file": name, "sha256": checksum_of(path), "size": path.stat().st_size, "rows": rows}


def writer_of(path: str) -> str:
    """Return the id of the writer of a part file."""
    return path.rpartition("/")[2].partition("-")[0]
