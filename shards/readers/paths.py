"""Lists the files behind a path, a list, a folder, a glob or an fsspec URL, and reads their bytes."""

from __future__ import annotations

import fnmatch
import itertools
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from orca.core.arguments import check_count, check_mapping, check_path, wrong
from orca.errors import ArgumentError, DataError, OrcaError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MARKS = ("_SUCCESS", "_metadata", "_common_metadata", "_committed_*", "_started_*", "_temporary", "_delta_log")
"""Files that Spark, Hive and Delta write beside the data; other names with a leading underscore are data."""

PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
"""Endings of compressed files."""


@dataclass(frozen=True)
class File:
    """One file: its local path or URL, its name in messages, its size and the folder it was listed from."""

    url: str
    label: str
    size: int
    root: str
    storage: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def local(self) -> bool:
        return "://" not in self.url


def listing(
    paths: Paths, storage: dict[str, Any] | None = None, endings: Sequence[str] = (), argument: str = "paths"
) -> list[File]:
    """List all files of `paths`; those of a folder or glob are sorted, those of a list keep its order.

    In a folder, hidden files and Spark's markers are skipped, and with `endings` all files with other endings.
    """
    expected = "a path, a folder, a glob, a URL, or a list of them"
    if not isinstance(paths, str | bytes | os.PathLike | Sequence):
        raise wrong(argument, paths, expected)
    entries = [paths] if isinstance(paths, str | bytes | os.PathLike) else list(paths)
    if not entries:
        raise ArgumentError(f"{argument}=[] is an empty list. Give at least one file, folder or glob.")
    options = {} if storage is None else dict(check_mapping("storage_options", storage))
    names = [check_path(argument, entry, expected) for entry in entries]
    files = [file for name in names for file in _expand(name, options, tuple(endings), argument)]
    shared = {name for name, count in Counter(_base(file.url) for file in files).items() if count > 1}
    return [replace(file, label=file.url if _base(file.url) in shared else _base(file.url)) for file in files]


def _base(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def _expand(path: str, storage: dict[str, Any], endings: tuple[str, ...], argument: str) -> list[File]:
    import fsspec

    try:
        files, target = fsspec.core.url_to_fs(path, **storage)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{argument}={path!r} cannot be opened with {storage=}: {error}") from error
    local = "file" in (files.protocol if isinstance(files.protocol, list | tuple) else [files.protocol])

    def entry(name: str, info: dict[str, Any], root: str) -> File:
        url = name if local else str(files.unstrip_protocol(name))
        return File(url, url, int(info.get("size") or 0), root, storage)

    try:
        if files.isfile(target):
            return [entry(target, files.info(target), target.rpartition("/")[0])]
        if files.isdir(target):
            root, inside = target.rstrip("/"), files.find(target, detail=True)
        elif any(letter in target for letter in "*?["):
            fixed = target[: min(target.index(letter) for letter in "*?[" if letter in target)]
            root, inside = fixed.rpartition("/")[0], files.glob(target, detail=True)
            folders = [name for name, info in inside.items() if info.get("type") == "directory"]
            inside = {name: info for name, info in inside.items() if info.get("type") != "directory"}
            for folder in folders:
                inside |= files.find(folder, detail=True)
            if not inside:
                raise DataError(f"{argument}={path!r} matches no file.")
        else:
            raise DataError(f"{argument}={path!r} does not exist.")
    except OrcaError:
        raise
    except Exception as error:
        raise DataError(f"{argument}={path!r} cannot be listed: {type(error).__name__}: {error}") from error
    names = [name for name in sorted(inside) if not _hidden(name[len(root) :]) and _ends(name, endings)]
    if not names:
        kind = f" that ends in {', '.join(endings[:6])}…" if endings else ""
        raise DataError(f"{argument}={path!r} holds no data file{kind}.")
    return [entry(name, inside[name], root) for name in names]


def _hidden(below: str) -> bool:
    return any(
        part.startswith(".") or any(fnmatch.fnmatch(part, mark) for mark in _MARKS)
        for part in below.strip("/").split("/")
    )


def _ends(name: str, endings: tuple[str, ...]) -> bool:
    return not endings or name.lower().endswith(endings)


@contextmanager
def naming_file_in_errors(file: File) -> Iterator[None]:
    """Turn every error of opening or reading a file into one that names the file."""
    try:
        yield
    except OrcaError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{file.label} was removed, or is missing on this machine. Every machine needs access to {file.url!r}."
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise DataError(f"{file.label} cannot be read: {type(error).__name__}: {text}") from error


def contents(file: File) -> Any:
    """Return all bytes of a file, decompressed; an uncompressed local file is mapped, not copied."""
    import fsspec

    with naming_file_in_errors(file):
        if file.local and not file.url.lower().endswith(PACKED):
            with open(file.url, "rb") as handle:
                size = os.fstat(handle.fileno()).st_size
                data: Any = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        else:
            with fsspec.open(file.url, "rb", compression="infer", **file.storage) as handle:
                data = handle.read()
    if not len(data):
        raise DataError(f"{file.label} is empty (0 bytes). Remove it, or leave it out of paths=.")
    return data


def grouped(files: Sequence[Any], count: int) -> list[list[Any]]:
    """Split files, in order, into `count` groups of even length.

    >>> grouped(["a", "b", "c"], 2)
    [['a'], ['b', 'c']]
    """
    cuts = [len(files) * index // count for index in range(count + 1)]
    return [list(files[low:high]) for low, high in itertools.pairwise(cuts)]


def checked_count(num_shards: int | None) -> int | None:
    """Return `num_shards` if it is None or an integer of at least 1, else raise."""
    return None if num_shards is None else check_count("num_shards", num_shards)
