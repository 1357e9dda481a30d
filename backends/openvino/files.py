"""A model as files of OpenVINO's own format: how it travels, and where a host keeps it with what was compiled."""

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

_KEPT = 32
"""Models that a cache folder keeps; the ones that were not used for the longest time make way."""


class ModelFiles:
    """An .xml and its .bin: files of the user's, or bytes, which every host that needs them keeps in its cache."""

    def __init__(self, xml: Path) -> None:
        self._xml: Path | None = xml
        self._bytes: tuple[bytes, bytes] | None = None
        self._digest: str | None = None

    @classmethod
    def of(cls, model: Any, cache: Path) -> ModelFiles:
        """Keep a model that is in memory."""
        with tempfile.TemporaryDirectory(prefix="orca-openvino-") as folder:
            xml = Path(folder) / "model.xml"
            # The weights stay as precise as they are.
            openvino.save_model(model, str(xml), compress_to_fp16=False)
            made = cls(xml)
            made._kept(cache)
            # The bytes stay: what lies in the cache has to make way for other models one day.
            made._xml = None
        return made

    def path(self, cache: Path) -> Path:
        """Where the .xml is on this host."""
        return self._xml if self._xml is not None and self._xml.exists() else self._kept(cache)

    def folder(self, cache: Path) -> Path:
        """The folder of this model in the cache."""
        return cache / self.digest[:32]

    @property
    def digest(self) -> str:
        """What tells this model from others."""
        if self._digest is None:
            xml, weights = self._read()
            made = hashlib.sha256(len(xml).to_bytes(8, "little"))
            made.update(xml)
            made.update(weights)
            self._digest = made.hexdigest()
        return self._digest

    def _read(self) -> tuple[bytes, bytes]:
        if self._bytes is None:
            assert self._xml is not None
            weights = self._xml.with_suffix(".bin")
            self._bytes = self._xml.read_bytes(), weights.read_bytes() if weights.exists() else b""
        return self._bytes

    def _kept(self, cache: Path) -> Path:
        folder = self.folder(cache)
        if not all((folder / name).exists() for name in ("model.xml", "model.bin")):
            folder.mkdir(parents=True, exist_ok=True)
            xml, weights = self._read()
            # The .xml comes last: whoever finds it finds the weights too. Others may do the same meanwhile.
            for name, content in (("model.bin", weights), ("model.xml", xml)):
                draft = folder / f".{os.getpid()}-{threading.get_ident()}-{name}"
                draft.write_bytes(content)
                draft.replace(folder / name)
            _make_room(cache)
        return folder / "model.xml"

    def __getstate__(self) -> dict[str, Any]:
        return {"_xml": None, "_bytes": self._read(), "_digest": self.digest}


def default_cache() -> Path:
    """The folder that ORCA_CACHE_DIR names, or the user's for what can be made again, or one of temporary files."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orca"
    place = Path(os.environ.get("ORCA_CACHE_DIR") or base) / "openvino"
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return place
    return Path(tempfile.gettempdir()) / f"orca-openvino-{os.getuid()}"


def _make_room(cache: Path) -> None:
    def used(folder: Path) -> float:
        with contextlib.suppress(OSError):
            return folder.stat().st_mtime
        return 0.0

    # Others may keep things of their own in the same folder.
    ours = [
        entry
        for entry in cache.iterdir()
        if re.fullmatch("[0-9a-f]{32}", entry.name) and ((entry / "model.xml").is_file() or (entry / "lock").is_file())
    ]
    for folder in sorted(ours, key=used, reverse=True)[_KEPT:]:
        # Whoever has the files open keeps them.
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process of this host at a time compile in a folder: the next one finds what the first has made."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(folder)
        yield
