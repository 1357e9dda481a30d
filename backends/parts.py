"""States in parts: where ranks hold slices of large arrays, each rank can write its slices to a file of its own.

The files have the form of other saved arrays. An index, which is stored with the rest of the state, says which slice of
which array is where, so that any number of ranks can read them again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.core.folders import Folder

Arrays = dict[str, np.ndarray[Any, Any]]

_FILE = re.compile(r"arrays-[0-9a-f]{12}-[0-9]+\.safetensors")


@dataclass(frozen=True)
class InParts:
    """A leaf of a state: the array of this name, which is in parts."""

    name: str


@dataclass(frozen=True)
class Parts:
    """The index of arrays in parts, in a form that JSON has as well."""

    files: Mapping[str, str]
    """The checksum of each file, by its name."""
    arrays: Mapping[str, Mapping[str, Any]]
    """By name: "dtype", "shape" and "slices", a list of file, key in the file, and offsets in the array."""

    def as_dict(self) -> dict[str, Any]:
        """Return the index as plain values."""
        return {"files": dict(self.files), "arrays": {name: dict(array) for name, array in self.arrays.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Parts:
        """Rebuild an index that `as_dict` returned; raise for one that names other files."""
        for name in values["files"]:
            if not _FILE.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a part")
        return cls(values["files"], values["arrays"])


def part_name(token: str, rank: int) -> str:
    """Return the file name of a rank's part; the token is the same on all ranks, and new for each state."""
    return f"arrays-{token}-{rank}.safetensors"


def write_part(path: str, name: str, arrays: Arrays) -> str:
    """Write arrays to a file below a path; return its checksum."""
    from safetensors.numpy import save

    folder = Folder(path)
    folder.files.makedirs(folder.target, exist_ok=True)
    blob = save(arrays)
    folder.write(name, blob)
    return hashlib.sha256(blob).hexdigest()


def read_parts(folder: Folder, parts: Parts) -> Arrays:
    """Return the whole arrays; raise if a part is missing, or is not what was written."""
    from safetensors import safe_open

    arrays = {name: np.empty(array["shape"], array["dtype"]) for name, array in parts.arrays.items()}
    left = {name: array.size for name, array in arrays.items()}
    for file, checksum in parts.files.items():
        with folder.verified(file, checksum) as path, safe_open(path, "np") as slices:
            for name, array in parts.arrays.items():
                for _, key, offsets in (entry for entry in array["slices"] if entry[0] == file):
                    piece = slices.get_tensor(key)
                    place = tuple(slice(at, at + size) for at, size in zip(offsets, piece.shape, strict=True))
                    if arrays[name][place].shape != piece.shape or arrays[name].dtype != piece.dtype:
                        raise ValueError(f"a slice of {name!r} does not fit into it")
                    arrays[name][place] = piece
                    left[name] -= piece.size
    incomplete = [name for name, size in left.items() if size]
    if incomplete:
        raise ValueError(f"the slices do not cover {incomplete[0]!r}")
    return arrays


@dataclass(frozen=True)
class Reach:
    """A file that the driver has written into the folder of checkpoints: ranks that see it can write there."""

    folder: str
    name: str
    content: str

    def sees(self) -> bool:
        """Whether this process has access to the same folder."""
        try:
            return Folder(self.folder).read(self.name) == self.content.encode()
        except Exception:
            return False


def checkpoint_path(folder: str, step: int) -> str:
    """Return the path of the checkpoint of a step."""
    return f"{folder.rstrip('/')}/checkpoint-{step}"
