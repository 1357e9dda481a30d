"""Saved states: arrays in a safetensors file, everything else as JSON, on any fsspec path; never a pickle."""

from __future__ import annotations

import json
import tempfile
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from orca.errors import ArgumentError, DataError

_ABOUT = "orca.json"
_MARK, _TENSOR, _ITEMS, _TUPLE = "orca.array", "orca.tensor", "orca.items", "orca.tuple"


def save(path: str, facts: dict[str, Any], state: Any) -> None:
    """Write a state to a folder.

    The description is moved in last and names its arrays: until then the old state is the saved one, whatever
    interrupts the writing.
    """
    import fsspec
    from safetensors.numpy import save as pack

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    name = f"arrays-{uuid.uuid4().hex[:12]}.safetensors"
    description = {"format": 1, **facts, "arrays": name, "state": _split(state, "", arrays)}
    files, target = fsspec.core.url_to_fs(str(path))
    target = target.rstrip("/")
    names = [str(name).rpartition("/")[2] for name in files.ls(target, detail=False)] if files.exists(target) else []
    # Leftovers of an interrupted save may be replaced.
    if _ABOUT not in names and any(not name.startswith("arrays-") for name in names):
        raise ArgumentError(f"path={str(path)!r} exists and is not a saved estimator. Choose another path.")
    files.makedirs(target, exist_ok=True)
    draft = f"{target}/{name}.json"
    try:
        files.pipe_file(f"{target}/{name}", pack(arrays))
        files.pipe_file(draft, json.dumps(description, indent=1).encode())
        files.mv(draft, f"{target}/{_ABOUT}")
    except BaseException:
        for left in (f"{target}/{name}", draft):
            if files.exists(left):
                files.rm(left)
        raise
    for left in files.ls(target, detail=False):
        last = str(left).rpartition("/")[2]
        if last.startswith("arrays-") and last != name:
            files.rm(left)


def exists(path: str) -> bool:
    """Whether the path holds a complete saved state."""
    import fsspec

    files, target = fsspec.core.url_to_fs(str(path))
    return bool(files.exists(f"{target.rstrip('/')}/{_ABOUT}"))


def about(path: str) -> dict[str, Any] | None:
    """Return the description of a saved state without the state itself; None if there is none."""
    import fsspec

    if not exists(path):
        return None
    files, target = fsspec.core.url_to_fs(str(path))
    description: dict[str, Any] = json.loads(files.cat_file(f"{target.rstrip('/')}/{_ABOUT}"))
    return {key: value for key, value in description.items() if key != "state"}


def remove(path: str) -> None:
    """Delete a saved state; any other folder stays."""
    import fsspec

    if exists(path):
        files, target = fsspec.core.url_to_fs(str(path))
        files.rm(target.rstrip("/"), recursive=True)


def load(path: str) -> tuple[dict[str, Any], Any]:
    """Read what `save` wrote: the description and the state."""
    import fsspec
    from safetensors.numpy import load_file

    files, target = fsspec.core.url_to_fs(str(path))
    target = target.rstrip("/")
    if not files.exists(f"{target}/{_ABOUT}"):
        raise ArgumentError(f"path={str(path)!r} has no saved estimator in it (no {_ABOUT} there).")
    description = json.loads(files.cat_file(f"{target}/{_ABOUT}"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "arrays"
        files.get_file(f"{target}/{description.pop('arrays')}", str(copy))
        arrays = load_file(str(copy))
    return description, _join(description.pop("state"), arrays)


def _split(tree: Any, name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Replace arrays by their names, mark types that JSON lacks, and refuse what cannot be saved."""
    if hasattr(tree, "detach") and hasattr(tree, "numpy"):
        return {_TENSOR: _split(tree.detach().cpu().numpy(), name, arrays)}
    if isinstance(tree, np.ndarray):
        key = name or "value"
        arrays[key] = np.ascontiguousarray(tree).reshape(tree.shape)
        return {_MARK: key}
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, dict):
        if all(isinstance(key, str) for key in tree):
            return {key: _split(value, f"{name}.{key}" if name else key, arrays) for key, value in tree.items()}
        return {_ITEMS: [[key, _split(value, f"{name}.{key}", arrays)] for key, value in tree.items()]}
    if isinstance(tree, tuple):
        return {_TUPLE: [_split(value, f"{name}.{index}", arrays) for index, value in enumerate(tree)]}
    if isinstance(tree, list):
        return [_split(value, f"{name}.{index}", arrays) for index, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise DataError(f"{name or 'the state'} is a {type(tree).__name__}, which cannot be saved without pickling it.")


def _join(tree: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(tree, list):
        return [_join(value, arrays) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {_MARK}:
        return arrays[tree[_MARK]]
    if set(tree) == {_TENSOR}:
        import torch

        return torch.from_numpy(np.array(_join(tree[_TENSOR], arrays)))
    if set(tree) == {_ITEMS}:
        return {key: _join(value, arrays) for key, value in tree[_ITEMS]}
    if set(tree) == {_TUPLE}:
        return tuple(_join(value, arrays) for value in tree[_TUPLE])
    return {key: _join(value, arrays) for key, value in tree.items()}
