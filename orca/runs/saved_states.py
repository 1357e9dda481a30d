"""Saved states: arrays in a safetensors file, everything else as JSON, on any fsspec path; never a pickle.

A folder holds ``orca.json``, the manifest, and the arrays that it names. The manifest is moved into place last: until
then the old state is the saved one, whatever interrupts the writing. Only files with names of this form are touched.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from orca.backends.parts import InParts, Parts, read_parts
from orca.core.folders import Folder
from orca.core.limits import explained_limits
from orca.errors import ArgumentError, DataError

FORMAT, PARTS_FORMAT = 2, 3
"""The format of saved states, and of those in parts."""
_MANIFEST = "orca.json"
_OWN = re.compile(r"arrays-[0-9a-f]{12}(-[0-9]+)?\.safetensors(\.json)?")
_ARRAY, _TENSOR, _ITEMS, _TUPLE = "orca.array", "orca.tensor", "orca.items", "orca.tuple"
_MARKS = {_ARRAY, _TENSOR, _ITEMS, _TUPLE}
_LEFTOVER_SECONDS = 3600.0
"""Files of an interrupted save are removed after this time; before, another process may still be writing them."""
_TRIES = 5
"""How often `load` reads the manifest again because another process has replaced it meanwhile."""

Arrays = dict[str, np.ndarray[Any, Any]]


def save(path: str, facts: dict[str, Any], state: Any, parts: Parts | None = None) -> None:
    """Write a state to a folder, in place of the one that it may hold.

    Args:
        path: The folder.
        facts: The description, for `about`.
        state: The state; `InParts` stands for arrays that ranks have written to the folder already.
        parts: The index of those.

    Raises:
        ArgumentError: The folder holds other files and no saved state.
        DataError: The state holds something that cannot be saved without pickling it.
    """
    with explained_limits(path):
        _save(path, facts, state, parts)


def _save(path: str, facts: dict[str, Any], state: Any, parts: Parts | None) -> None:
    from safetensors.numpy import save as pack

    folder = Folder(path)
    arrays: Arrays = {}
    name = f"arrays-{uuid.uuid4().hex[:12]}.safetensors"
    tree = _split(state, "", arrays)
    names = folder.names()
    if _MANIFEST not in names and any(not _OWN.fullmatch(entry) for entry in names):
        raise ArgumentError(f"path={folder.path!r} exists and is not a saved estimator. Choose another path.")
    folder.files.makedirs(folder.target, exist_ok=True)
    blob = pack(arrays)
    checksum = hashlib.sha256(blob).hexdigest()
    manifest = {"format": FORMAT, **facts, "arrays": name, "sha256": checksum, "state": tree}
    written = {name}
    if parts is not None:
        manifest |= {"format": PARTS_FORMAT, "parts": parts.as_dict()}
        written |= parts.files.keys()
    draft = f"{name}.json"
    try:
        folder.write(name, blob)
        folder.write(draft, json.dumps(manifest, indent=1).encode())
        replaced = _files_of(folder) - written
        folder.move(draft, _MANIFEST)
    except BaseException:
        for entry in (*written, draft):
            folder.remove(entry)
        raise
    for entry in replaced:
        folder.remove(entry)
    for entry in set(names) - written - replaced:
        if _OWN.fullmatch(entry) and folder.age(entry) > _LEFTOVER_SECONDS:
            folder.remove(entry)


def _files_of(folder: Folder) -> set[str]:
    """Return the files of arrays that the manifest names, if there is one that can be read."""
    try:
        manifest = json.loads(folder.read(_MANIFEST))
        names = {manifest["arrays"], *manifest.get("parts", {}).get("files", {})}
    except Exception:
        return set()
    return {name for name in names if isinstance(name, str) and _OWN.fullmatch(name)}


def exists(path: str) -> bool:
    """Whether the path holds a saved state."""
    return Folder(path).has(_MANIFEST)


def about(path: str) -> dict[str, Any] | None:
    """Return the description of a saved state without the state itself; None if there is none that can be read."""
    folder = Folder(path)
    if not folder.has(_MANIFEST):
        return None
    try:
        manifest = _manifest(folder)
    except DataError:
        return None
    return {key: value for key, value in manifest.items() if key not in ("state", "parts")}


def remove(path: str) -> None:
    """Delete a saved state; other files stay, and so does their folder."""
    folder = Folder(path)
    if not folder.has(_MANIFEST):
        return
    for name in (_MANIFEST, *(entry for entry in folder.names() if _OWN.fullmatch(entry))):
        folder.remove(name)
    if not folder.names():
        folder.files.rm(folder.target, recursive=True)


def load(path: str) -> tuple[dict[str, Any], Any]:
    """Return what `save` wrote: the description and the state.

    Raises:
        ArgumentError: There is no saved state.
        DataError: It is damaged, or was written by a newer version of Orca.
    """
    folder = Folder(path)
    if not folder.has(_MANIFEST):
        raise ArgumentError(f"path={folder.path!r} has no saved estimator in it (it contains no {_MANIFEST}).")
    for attempt in range(_TRIES):
        manifest = _manifest(folder)
        try:
            arrays = _read_arrays(folder, manifest) | _read_parts(folder, manifest)
            break
        except FileNotFoundError as error:
            # Another process may have replaced the state between the two reads.
            if attempt + 1 == _TRIES or _manifest(folder)["arrays"] == manifest["arrays"]:
                missing = Path(error.filename or manifest["arrays"]).name
                raise DataError(
                    f"path={folder.path!r} is damaged: {missing!r} is missing, which holds its arrays."
                ) from error
    with _naming(folder):
        state = _join(manifest.pop("state"), arrays)
    manifest.pop("arrays")
    manifest.pop("sha256", None)
    manifest.pop("parts", None)
    return manifest, state


@contextmanager
def _naming(folder: Folder) -> Iterator[None]:
    """Turn whatever damage causes into one error that names the path."""
    try:
        yield
    except (FileNotFoundError, DataError):
        raise
    except Exception as error:
        raise DataError(f"path={folder.path!r} is damaged: {type(error).__name__}: {error}") from error


def _manifest(folder: Folder) -> dict[str, Any]:
    with _naming(folder):
        manifest = json.loads(folder.read(_MANIFEST))
        if not isinstance(manifest, dict):
            raise DataError(f"path={folder.path!r} is damaged: {_MANIFEST} is a {type(manifest).__name__}, not a dict.")
        version = manifest.get("format")
        if version not in (1, FORMAT, PARTS_FORMAT):
            raise DataError(
                f"path={folder.path!r} has format {version!r}; this version of Orca reads 1 to {PARTS_FORMAT}. "
                "Load it with the version that saved it, or a later one."
            )
        missing = [key for key in ("arrays", "state") if key not in manifest]
        if missing or not isinstance(manifest["arrays"], str) or not _OWN.fullmatch(manifest["arrays"]):
            raise DataError(f"path={folder.path!r} is damaged: {_MANIFEST} does not name its arrays and state.")
        return manifest


def _read_arrays(folder: Folder, manifest: dict[str, Any]) -> Arrays:
    from safetensors.numpy import load_file

    with folder.verified(manifest["arrays"], manifest.get("sha256")) as path, _naming(folder):
        arrays: Arrays = load_file(path)
        return arrays


def _read_parts(folder: Folder, manifest: dict[str, Any]) -> Arrays:
    if "parts" not in manifest:
        return {}
    with _naming(folder):
        return read_parts(folder, Parts.from_dict(manifest["parts"]))


def _split(tree: Any, name: str, arrays: Arrays) -> Any:
    """Replace arrays by their numbers, mark types that JSON lacks, and refuse what cannot be saved."""
    if hasattr(tree, "detach") and hasattr(tree, "numpy"):
        return {_TENSOR: _split(tree.detach().cpu().numpy(), name, arrays)}
    if isinstance(tree, InParts):
        return {_ARRAY: tree.name}
    if isinstance(tree, np.ndarray):
        key = str(len(arrays))
        arrays[key] = np.ascontiguousarray(tree).reshape(tree.shape)
        return {_ARRAY: key}
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, dict):
        if all(isinstance(key, str) for key in tree) and not set(tree) & _MARKS:
            return {key: _split(value, f"{name}.{key}" if name else key, arrays) for key, value in tree.items()}
        for key in tree:
            if not (key is None or isinstance(key, bool | int | float | str)):
                raise DataError(f"{name or 'the state'} has the key {key!r}; only numbers and text can be saved.")
        return {_ITEMS: [[key, _split(value, f"{name}.{key}", arrays)] for key, value in tree.items()]}
    if isinstance(tree, tuple):
        return {_TUPLE: [_split(value, f"{name}.{index}", arrays) for index, value in enumerate(tree)]}
    if isinstance(tree, list):
        return [_split(value, f"{name}.{index}", arrays) for index, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise DataError(f"{name or 'the state'} is a {type(tree).__name__}, which cannot be saved without pickling it.")


def _join(tree: Any, arrays: Arrays) -> Any:
    if isinstance(tree, list):
        return [_join(value, arrays) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {_ARRAY}:
        return arrays[tree[_ARRAY]]
    if set(tree) == {_TENSOR}:
        import torch

        return torch.from_numpy(np.array(_join(tree[_TENSOR], arrays)))
    if set(tree) == {_ITEMS}:
        return {key: _join(value, arrays) for key, value in tree[_ITEMS]}
    if set(tree) == {_TUPLE}:
        return tuple(_join(value, arrays) for value in tree[_TUPLE])
    return {key: _join(value, arrays) for key, value in tree.items()}
