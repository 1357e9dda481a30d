"""Writes one file per shard into a folder: under temporary names, renamed when all shards are written."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from typing import Any

from orca.core.arguments import check_path
from orca.errors import ArgumentError, DataError
from orca.shards.readers.reading import own_errors
from orca.shards.xshards import XShards

_PART = re.compile(r"part-\d{5,}\.\w+")


def write_parts(shards: XShards, path: str | os.PathLike[str], ending: str, write: Callable[[Any, Any], None]) -> None:
    """Call ``write(shard, file)`` for every shard where it is stored; parts of an earlier call are replaced."""
    import fsspec

    if not isinstance(shards, XShards):
        raise ArgumentError(f"shards= is a {type(shards).__name__}; expected XShards to write. Use XShards.partition.")
    url = check_path("path", path, "the path of a folder")
    files, target = fsspec.core.url_to_fs(url)
    target = target.rstrip("/")
    if files.isfile(target):
        raise DataError(f"path={url!r} is a file; expected a new or empty folder.")
    existing = files.ls(target, detail=False) if files.exists(target) else []
    old = [str(name) for name in existing if _is_part(str(name), ending)]
    other = sorted(str(name).rpartition("/")[2] for name in existing if str(name) not in old)
    if other:
        raise DataError(f"path={url!r} holds other files ({', '.join(other[:3])}). Give a new or empty folder.")
    files.makedirs(target, exist_ok=True)
    mark = f".writing-{uuid.uuid4().hex[:12]}"

    def step(index: int, shard: Any) -> str:
        remote, folder = fsspec.core.url_to_fs(url)
        # A repeated task writes another file, so that two attempts never share one.
        name = f"{folder.rstrip('/')}/{mark}-{uuid.uuid4().hex[:8]}"
        with remote.open(name, "wb") as file:
            write(shard, file)
        return name

    try:
        with own_errors():
            written = shards.transform_with_index(step).collect()
        for name in old:
            files.rm_file(name)
        for index, name in enumerate(written):
            files.mv(name, f"{target}/part-{index:05d}.{ending}")
    finally:
        for name in files.ls(target, detail=False, refresh=True):
            if str(name).rpartition("/")[2].startswith(mark):
                files.rm_file(name)


def _is_part(name: str, ending: str) -> bool:
    base = name.rpartition("/")[2]
    return _PART.fullmatch(base) is not None and base.endswith(f".{ending}")
