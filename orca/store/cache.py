"""Files of a remote store on this machine, by checksum: downloaded once, verified, shared by all processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from orca.core.folders import cache_folder
from orca.store.files import Files, checksum_of

_KEPT = 32
"""The number of versions in the cache; the least recently used are evicted."""


def fetched(files: Files, folder: str, checksums: Mapping[str, str], key: str) -> Path:
    """Return a local folder with these files of a remote one; `key` identifies their contents."""
    cache = cache_folder("store")
    final = cache / key
    if final.is_dir() and _is_whole(final, checksums):
        os.utime(final)
        return final
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=cache))
    try:
        for name, sha256 in checksums.items():
            files.fetch(f"{folder}/{name}", sha256, draft / name)
        if final.exists():
            # Damaged, or evicted in part. Another process may repair it at the same time.
            shutil.rmtree(final, ignore_errors=True)
        try:
            draft.rename(final)
        except OSError:
            if not _is_whole(final, checksums):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _evict(cache, final)
    return final


def _is_whole(folder: Path, checksums: Mapping[str, str]) -> bool:
    return all((folder / name).is_file() and checksum_of(folder / name) == sha for name, sha in checksums.items())


def _evict(cache: Path, kept: Path) -> None:
    entries = [entry for entry in cache.iterdir() if not entry.name.startswith(".") and entry != kept]
    for entry in sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(entry, ignore_errors=True)
