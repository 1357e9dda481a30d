"""Shards as pickle files of a folder, on any fsspec path; a file written last marks the folder as complete."""

from __future__ import annotations

import json
import pickle
from typing import Any

from orca.errors import DataError

_ABOUT = "orca-shards.json"


def _locate(path: str) -> tuple[Any, str]:
    import fsspec

    files, target = fsspec.core.url_to_fs(str(path))
    return files, target.rstrip("/")


def prepare(path: str) -> None:
    """Create the folder; earlier saved shards in it are removed, anything else in it is an error."""
    files, target = _locate(path)
    if files.exists(target) and files.ls(target, detail=False):
        if not files.exists(f"{target}/{_ABOUT}"):
            raise DataError(f"path={str(path)!r} exists and holds files other than saved shards.")
        files.rm(target, recursive=True)
    files.makedirs(target, exist_ok=True)


def write(path: str, index: int, shard: Any) -> int:
    """Write one shard and return its size in bytes."""
    files, target = _locate(path)
    blob = pickle.dumps(shard, protocol=5)
    files.pipe_file(f"{target}/part-{index:05d}.pickle", blob)
    return len(blob)


def commit(path: str, count: int) -> None:
    """Mark the folder as complete."""
    files, target = _locate(path)
    files.pipe_file(f"{target}/{_ABOUT}", json.dumps({"shards": count}).encode())


def listing(path: str) -> list[str]:
    """List the files of a complete folder, in order."""
    files, target = _locate(path)
    if not files.exists(f"{target}/{_ABOUT}"):
        raise DataError(f"path={str(path)!r} holds no saved shards, or their writing was interrupted.")
    count = json.loads(files.cat_file(f"{target}/{_ABOUT}"))["shards"]
    names = sorted(name for name in files.ls(target, detail=False) if str(name).endswith(".pickle"))
    if len(names) != count:
        raise DataError(f"path={str(path)!r} should have {count} shards and has {len(names)} files.")
    scheme = str(path).partition("://")[0] + "://" if "://" in str(path) else ""
    return [f"{scheme}{name}" if scheme and "://" not in str(name) else str(name) for name in names]


def read(names: list[str]) -> Any:
    """Read the shard of one file."""
    files, target = _locate(names[0])
    return pickle.loads(files.cat_file(target))
