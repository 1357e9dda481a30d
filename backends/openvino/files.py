"""A model as files in OpenVINO's format: how it is sent to workers, and the cache folder of a host."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openvino

from orca.core.folders import cache_folder

_CACHED_MODELS = 32
"""The number of models in a cache folder; the least recently used are evicted."""


class ModelFiles:
    """An .xml and its .bin: the user's files, or bytes, which each host writes to its cache when needed."""

    def __init__(self, xml: Path) -> None:
        self._xml: Path | None = xml
        self._bytes: tuple[bytes, bytes] | None = None
        self._digest: str | None = None

    @classmethod
    def of(cls, model: Any, cache: Path) -> ModelFiles:
        """Store a model that is in memory."""
        with tempfile.TemporaryDirectory(prefix="orca-openvino-") as folder:
            xml = Path(folder) / "model.xml"
            # The weights keep their precision.
            openvino.save_model(model, str(xml), compress_to_fp16=False)
            files = cls(xml)
            files._cached(cache)
            # The bytes stay in memory: the cache may evict the files.
            files._xml = None
        return files

    def path(self, cache: Path) -> Path:
        """Return the path of the .xml on this host."""
        return self._xml if self._xml is not None and self._xml.exists() else self._cached(cache)

    def folder(self, cache: Path) -> Path:
        """Return the folder of this model in the cache."""
        return cache / self.digest[:32]

    @property
    def digest(self) -> str:
        """A hash of the model."""
        if self._digest is None:
            xml, weights = self._read()
            digest = hashlib.sha256(len(xml).to_bytes(8, "little"))
            digest.update(xml)
            digest.update(weights)
            self._digest = digest.hexdigest()
        return self._digest

    def _read(self) -> tuple[bytes, bytes]:
        if self._bytes is None:
            assert self._xml is not None
            weights = self._xml.with_suffix(".bin")
            self._bytes = self._xml.read_bytes(), weights.read_bytes() if weights.exists() else b""
        return self._bytes

    def _cached(self, cache: Path) -> Path:
        folder = self.folder(cache)
        if not all((folder / name).exists() for name in ("model.xml", "model.bin")):
            folder.mkdir(parents=True, exist_ok=True)
            xml, weights = self._read()
            # The .xml is written last, so that its weights exist. Other processes may write the same files meanwhile.
            for name, content in (("model.bin", weights), ("model.xml", xml)):
                draft = folder / f".{os.getpid()}-{threading.get_ident()}-{name}"
                draft.write_bytes(content)
                draft.replace(folder / name)
            _evict(cache)
        return folder / "model.xml"

    def __getstate__(self) -> dict[str, Any]:
        return {"_xml": None, "_bytes": self._read(), "_digest": self.digest}


def default_cache() -> Path:
    """Return the folder named by ORCA_CACHE_DIR, or the user's cache folder, or a temporary one."""
    return cache_folder("openvino")


def _evict(cache: Path) -> None:
    def last_used(folder: Path) -> float:
        with contextlib.suppress(OSError):
            return folder.stat().st_mtime
        return 0.0

    # The user may have other files in the same folder.
    ours = [
        entry
        for entry in cache.iterdir()
        if re.fullmatch("[0-9a-f]{32}", entry.name) and ((entry / "model.xml").is_file() or (entry / "lock").is_file())
    ]
    for folder in sorted(ours, key=last_used, reverse=True)[_CACHED_MODELS:]:
        # Processes that have the files open can still read them.
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process of this host at a time compile in a folder; the next one loads the result."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(folder)
        yield
