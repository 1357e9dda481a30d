"""Archives that a store takes in: the names of their members, and what they would unpickle."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from orca.errors import ArgumentError, DataError

_MOST_MEMBERS = 100_000
_LARGEST_JSON = 256 << 20


def check_members(path: Path) -> None:
    """Raise if a member of a zip archive would be extracted outside of its folder."""
    for name in _open(path):
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or "\0" in name or ":" in name:
            raise DataError(f"{path.name!r} holds a file with the name {name!r}, outside of the archive: refused.")


def check_no_pickles(path: Path) -> None:
    """Raise if a program archive of torch (.pt2) says that torch has to unpickle some of its weights."""
    check_members(path)
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".json") or info.file_size > _LARGEST_JSON:
                continue
            try:
                content = json.loads(archive.read(info))
            except ValueError:
                continue
            if _wants_pickle(content):
                raise ArgumentError(
                    f"{path.name!r} has weights that torch would unpickle, which runs code ({info.filename}): put the "
                    "module itself, or its .onnx or .xml file."
                )


def _wants_pickle(tree: Any) -> bool:
    if isinstance(tree, dict):
        return bool(tree.get("use_pickle")) or any(_wants_pickle(value) for value in tree.values())
    return isinstance(tree, list) and any(_wants_pickle(value) for value in tree)


def _open(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path.name!r} is damaged: {error}") from error
    if len(names) > _MOST_MEMBERS:
        raise DataError(f"{path.name!r} holds {len(names)} files: refused.")
    return names
