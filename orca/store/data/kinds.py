"""Which kind of dataset some data is, its part files, and how these are read in the requested form."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orca.core.arguments import shown
from orca.errors import ArgumentError, DataError
from orca.shards.readers.reading import own_errors
from orca.shards.readers.reading import read as read_shards
from orca.shards.readers.tfrecord_files import read_tfrecord
from orca.shards.tree import kind_of, leaves
from orca.shards.xshards import XShards
from orca.store.cache import fetched
from orca.store.data import arrays, records, tables, virtual
from orca.store.data.parts import PartWriter
from orca.store.files import Files

Entries = list[dict[str, Any]]
FORMS = ("pandas", "arrow", "numpy", "xshards", "tf.data")
"""The forms of `get(as_=…)`; each kind of data offers some of them."""
_OFFERED = {
    "pandas": ("pandas", "arrow", "numpy", "xshards"),
    "arrow": ("arrow", "pandas", "numpy", "xshards"),
    "numpy": ("numpy", "xshards"),
    "records": ("tf.data", "xshards", "numpy"),
    "json": (),
    "virtual": (),
}


@dataclass(frozen=True)
class View:
    """What of a dataset to read, and in which form."""

    form: str | None = None
    columns: Sequence[str] | None = None
    filters: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, Any] | None = None


def kind_of_data(data: Any) -> tuple[str, Callable[[PartWriter, str], Entries]]:
    """Return the kind of some data, and a function that writes its parts."""
    if virtual.is_virtual(data):
        return "virtual", lambda writer, name: [virtual.write_virtual(writer, data, name)]
    if isinstance(data, XShards):
        return "xshards", lambda writer, name: _write_shards(writer, data)
    messages = records.examples_of(data)
    if messages is not None:
        return "records", lambda writer, name: records.write_records(writer, messages)
    kind = kind_of(data)
    if kind in ("frame", "table"):
        name = "pandas" if kind == "frame" else "arrow"
        return name, lambda writer, name: [tables.write_table(writer, "0", data)]
    if _has_arrays(data):
        return "numpy", lambda writer, name: [arrays.write_arrays(writer, "0", data)]
    if callable(data):
        raise ArgumentError(f"data={shown(data)}: mark a function with @virtualobj to store it as a virtual dataset.")
    text = _json(data)
    return "json", lambda writer, name: [_write_json(writer, data, text)]


def _has_arrays(data: Any) -> bool:
    parts = [leaf for _, leaf in leaves(data)]
    return bool(parts) and all(hasattr(part, "shape") and hasattr(part, "dtype") for part in parts)


def _json(data: Any) -> str:
    if isinstance(data, Mapping | list | tuple | str | bool | int | float) or data is None:
        try:
            return json.dumps(data, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"data= is neither arrays nor JSON values: {error}.") from error
    raise DataError(
        f"data={shown(data)}: expected a DataFrame, an Arrow table, arrays, XShards, tf.train.Example records, a "
        "function marked with @virtualobj, or JSON values."
    )


def _write_json(writer: PartWriter, data: Any, text: str) -> dict[str, Any]:
    with writer.part("0", "json", len(data) if isinstance(data, list | tuple) else 1) as part:
        part.path.write_text(text)
    return {**part.entry, "list": isinstance(data, list | tuple)}


def _write_shards(writer: PartWriter, shards: XShards) -> Entries:
    """Write every shard from where it is stored."""

    def step(index: int, shard: Any) -> dict[str, Any]:
        label = f"{index}-{uuid.uuid4().hex[:8]}"  # a repeated task writes another file
        if kind_of(shard) in ("frame", "table"):
            kind = "pandas" if kind_of(shard) == "frame" else "arrow"
            return {**tables.write_table(writer, label, shard, is_slice=True), "kind": kind}
        return {**arrays.write_arrays(writer, label, shard), "kind": "numpy"}

    with own_errors():
        entries: Entries = shards.transform_with_index(step).collect()
    for entry in entries[1:]:
        check_same(str(entries[0]["kind"]), entries[0], entry, "of this put")
    return entries


def check_same(kind: str, old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> None:
    """Raise if a part cannot be appended to another one."""
    kinds = old.get("kind", kind), new.get("kind", kind)
    if kinds[0] != kinds[1]:
        raise DataError(f"append=True: the data has the form of {kinds[1]}, the dataset {name!r} of {kinds[0]}.")
    if kinds[0] in ("pandas", "arrow"):
        tables.check_same(old, new, name)
    elif kinds[0] == "numpy":
        arrays.check_same(old, new, name)
    elif kinds[0] == "virtual" or (kinds[0] == "json" and not (old["list"] and new["list"])):
        what = "a virtual dataset" if kinds[0] == "virtual" else "JSON values other than lists"
        raise DataError(f"append=True: nothing can be appended to {what}. Use replace=True.")


def read(files: Files, path: str, manifest: Mapping[str, Any], view: View) -> Any:
    """Return the data of a manifest; `path` is that of the store."""
    kind, parts = str(manifest["kind"]), list(manifest["parts"])
    inner = str(parts[0].get("kind", kind)) if parts else kind
    form = view.form or ("xshards" if kind == "xshards" else inner)
    if view.form is not None and view.form not in _OFFERED[inner]:
        offered = ", ".join(f'"{name}"' for name in _OFFERED[inner]) or "None"
        raise ArgumentError(f"as_={view.form!r}: a dataset of {inner} is read as {offered}.")
    if inner not in ("pandas", "arrow") and (view.filters or (view.columns is not None and inner != "numpy")):
        what = next(iter(view.filters), "columns")
        raise ArgumentError(f"{what}=: only tables have columns and filters; this dataset holds {inner}.")
    if inner == "json":
        values = [json.loads(place.read_bytes()) for place in local_paths(files, parts)]
        return values[0] if len(values) == 1 else [entry for value in values for entry in value]
    if inner == "records":
        return _read_records(files, parts, form, view)
    if form == "xshards":
        with own_errors():
            return read_shards([[part] for part in parts], _read_shard, path, inner, view)
    if inner == "numpy":
        return _chosen(arrays.read_arrays(local_paths(files, parts), parts), view.columns)
    return _in_form(tables.read_table(files, checked(files, parts), view.columns, view.filters), form)


def _in_form(table: Any, form: str) -> Any:
    if form == "arrow":
        return table
    frame = table.to_pandas()
    return frame if form == "pandas" else {str(name): column.to_numpy() for name, column in frame.items()}


def _chosen(tree: Any, columns: Sequence[str] | None) -> Any:
    if columns is None:
        return tree
    if not isinstance(tree, dict) or not set(columns) <= set(tree):
        known = f"Entries: {', '.join(tree)}" if isinstance(tree, dict) else "It holds one array or a list"
        raise ArgumentError(f"columns={list(columns)}: the dataset has no such entries. {known}.")
    return {name: tree[name] for name in columns}


def _read_shard(parts: list[Mapping[str, Any]], path: str, kind: str, view: View) -> Any:
    """Read one part on a worker."""
    files = Files(path)
    if kind == "numpy":
        return _chosen(arrays.read_arrays(local_paths(files, parts), parts), view.columns)
    return _in_form(tables.read_table(files, checked(files, parts), view.columns, view.filters), kind)


def _read_records(files: Files, parts: Entries, form: str, view: View) -> Any:
    paths = local_paths(files, parts)
    if view.form is None:
        return records.read_messages(paths, parts)
    features = records.features_of(parts, view.features)
    if form == "tf.data":
        return records.as_dataset(paths, features)
    shards = read_tfrecord([str(path) for path in paths], features=features)
    return shards if form == "xshards" else shards.to_numpy()


def checked(files: Files, parts: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the parts if all are files inside of the store; their pages are verified as they are read."""
    for part in parts:
        files.check_inside(str(part["file"]))
    return parts


def local_paths(files: Files, parts: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Return the files of parts on this machine, verified."""
    if files.root is not None:
        for part in parts:
            files.check(str(part["file"]), str(part["sha256"]))
        return [files.root / str(part["file"]) for part in parts]
    paths = []
    for part in parts:
        folder, _, name = str(part["file"]).rpartition("/")
        key = hashlib.sha256(f"{part['sha256']} {name}".encode()).hexdigest()
        paths.append(fetched(files, folder, {name: str(part["sha256"])}, key) / name)
    return paths
