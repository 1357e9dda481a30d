"""Shards as pickle files of a folder, on any fsspec path; the folder counts only with its last file."""

from __future__ import annotations

import json
import pickle
from typing import Any

from orca.errors import DataError

_ABOUT = "orca-shards.json"


def _place(path: str) -> tuple[Any, str]:
    import fsspec

    files, target = fsspec.core.url_to_fs(str(path))
    return files, target.rstrip("/")


def prepare(path: str) -> None:
    """Make the folder; one that holds saved shards already is emptied, one with anything else is refused."""
    files, target = _place(path)
    if files.exists(target) and files.ls(target, detail=False):
        if not files.exists(f"{target}/{_ABOUT}"):
            raise DataError(f"path={str(path)!r} exists and holds something else than saved shards.")
        files.rm(target, recursive=True)
    files.makedirs(target, exist_ok=True)


def write(path: str, index: int, shard: Any) -> int:
    """Write one shard; return its size in bytes."""
    files, target = _place(path)
    blob = pickle.dumps(shard, protocol=5)
    files.pipe_file(f"{target}/part-{index:05d}.pickle", blob)
    return len(blob)


def commit(path: str, count: int) -> None:
    """Say that the folder is complete."""
    files, target = _place(path)
    files.pipe_file(f"{target}/{_ABOUT}", json.dumps({"shards": count}).encode())


def listing(path: str) -> list[str]:
    """The files of a complete folder, in order."""
    files, target = _place(path)
    if not files.exists(f"{target}/{_ABOUT}"):
        raise DataError(f"path={str(path)!r} holds no saved shards, or their writing was interrupted.")
    count = json.loads(files.cat_file(f"{target}/{_ABOUT}"))["shards"]
    found = sorted(name for name in files.ls(target, detail=False) if str(name).endswith(".pickle"))
    if len(found) != count:
        raise DataError(f"path={str(path)!r} should have {count} shards and has {len(found)} files.")
    scheme = str(path).partition("://")[0] + "://" if "://" in str(path) else ""
    return [f"{scheme}{name}" if scheme and "://" not in str(name) else str(name) for name in found]


def read(names: list[str]) -> Any:
    """Read one file back."""
    files, target = _place(names[0])
    return pickle.loads(files.cat_file(target))
