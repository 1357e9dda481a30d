"""Arrays of a dataset: one array or a structure of arrays as .npz parts, never with pickled objects."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.tree import as_arrays, describe, join_rows, leaves, row_count
from orca.store.data.parts import PartWriter


def write_arrays(writer: PartWriter, label: str, data: Any) -> dict[str, Any]:
    """Write a structure of arrays as one part; return its entry."""
    tree = as_arrays(data, "data")
    arrays = [leaf for _, leaf in leaves(tree)]
    for name, leaf in leaves(tree):
        if leaf.dtype.hasobject:
            raise DataError(f"data={name or 'array'}: objects ({leaf.dtype}) cannot be stored without pickling them.")
    rows = row_count(tree)
    with writer.part(label, "npz", rows) as part:
        np.savez(part.path, **{str(number): array for number, array in enumerate(arrays)})
    return {**part.entry, "tree": _outline(tree), "dtypes": describe(tree)}


def _outline(tree: Any) -> Any:
    """Return the structure as JSON values: names of dicts, and with lists and tuples marked."""
    if isinstance(tree, dict):
        return {"dict": [[str(key), _outline(value)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [_outline(value) for value in tree]}
    return None


def _filled(outline: Any, arrays: Any) -> Any:
    if outline is None:
        return next(arrays)
    (kind, entries), *_ = outline.items()
    if kind == "dict":
        return {key: _filled(entry, arrays) for key, entry in entries}
    values = [_filled(entry, arrays) for entry in entries]
    return values if kind == "list" else tuple(values)


def read_arrays(paths: Sequence[Path], parts: Sequence[Mapping[str, Any]]) -> Any:
    """Return the rows of all parts as one structure."""
    return join_rows([read_part(path, part) for path, part in zip(paths, parts, strict=True)])


def read_part(path: Path, part: Mapping[str, Any]) -> Any:
    """Return the structure of one part."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = [archive[str(number)] for number in range(len(archive.files))]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"The store is damaged: {part['file']!r} cannot be read: {error}") from error
    return _filled(part["tree"], iter(arrays))


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> None:
    """Raise if an appended part has another structure, or other shapes or types of rows."""
    if old["tree"] != new["tree"] or old["dtypes"] != new["dtypes"]:
        raise DataError(
            f"append=True: the arrays {new['dtypes']} do not fit the dataset {name!r}, which has {old['dtypes']}."
        )
