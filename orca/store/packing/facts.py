"""The facts in a manifest: signature, example, packages, history and attributes, as JSON values and plain files."""

from __future__ import annotations

import json
import math
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.arguments import check_mapping, wrong
from orca.errors import ArgumentError, DataError
from orca.shards.tree import as_arrays, describe, row_count, take_rows, tree_map
from orca.store.files import checksum_of
from orca.store.values import Port, Signature

if TYPE_CHECKING:
    from orca.backends.openvino.spec import OpenvinoSpec

FORMAT = 1
MANIFEST = "manifest.json"
EXAMPLE = "example.safetensors"
NATIVE = "native"
EXAMPLE_ROWS = 8
"""The number of rows of an example that a version keeps."""
SAMPLE_ROWS = 32
"""The number of rows on which the converted model is compared."""
_PACKAGES = ("orca-estimator", "numpy", "openvino")


@dataclass(frozen=True)
class Request:
    """What a call of `put` says besides the model."""

    example: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    history: Any = None
    trusted: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where the model comes from: the parent version, and the names of its data."""


@dataclass
class Facts:
    """What a kind of model says of itself, besides the files that it has written."""

    kind: str
    spec: OpenvinoSpec
    """The converted model."""
    native: Mapping[str, Any] = field(default_factory=dict)
    """How the native form is opened; empty if the converted model is all there is."""
    sample: Any = None
    packages: Sequence[str] = ()
    position: Mapping[str, Any] = field(default_factory=dict)
    history: Any = None


def manifest_of(facts: Facts, request: Request, folder: Path) -> dict[str, Any]:
    """Write the converted model and the example to a folder, and return the manifest of all its files."""
    write_ir(facts.spec, folder)
    example = _write_example(facts, folder)
    history = request.history if request.history is not None else facts.history
    return {
        "format": FORMAT,
        "kind": facts.kind,
        "signature": signature_of(facts.spec).as_dict(),
        "form": facts.spec.form,
        "native": dict(facts.native),
        "example": example,
        "packages": {"python": platform.python_version(), **_versions((*_PACKAGES, *facts.packages))},
        "position": dict(facts.position),
        "history": history_records(history),
        "attributes": dict(request.attributes),
        **request.origin,
        "files": {
            path.relative_to(folder).as_posix(): {"sha256": checksum_of(path), "size": path.stat().st_size}
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }


def write_ir(spec: OpenvinoSpec, folder: Path) -> None:
    """Write the converted model as model.xml and model.bin."""
    xml = spec.files.path(spec.cache)
    shutil.copyfile(xml, folder / "model.xml")
    weights = xml.with_suffix(".bin")
    if weights.exists():
        shutil.copyfile(weights, folder / "model.bin")
    else:
        (folder / "model.bin").write_bytes(b"")


def signature_of(spec: OpenvinoSpec) -> Signature:
    """Return the inputs and outputs of a converted model."""

    def ports(side: Sequence[Any]) -> tuple[Port, ...]:
        return tuple(Port(port.name, port.dtype, tuple(-1 if s is None else s for s in port.shape)) for port in side)

    return Signature(ports(spec.inputs), ports(spec.outputs))


def _write_example(facts: Facts, folder: Path) -> dict[str, Any] | None:
    """Write a few rows of input, by the names of the inputs."""
    from safetensors.numpy import save_file

    from orca.backends.openvino.ports import take_inputs

    if facts.sample is None:
        return None
    try:
        facts.spec.fits(facts.sample)
    except DataError as error:
        raise DataError(f"example= does not fit the model: {error}") from error
    arrays = take_inputs(take_rows(facts.sample, 0, EXAMPLE_ROWS), facts.spec.inputs)
    named = {port.name: np.ascontiguousarray(array) for port, array in zip(facts.spec.inputs, arrays, strict=True)}
    if any(array.dtype.kind not in "biuf" for array in named.values()):
        return None
    save_file(named, str(folder / EXAMPLE))
    return {"file": EXAMPLE, "rows": row_count(named), "dtypes": describe(named)}


def checked_sample(example: Any) -> Any:
    """Return the rows that a user passes as ``example=`` as arrays."""
    sample = as_arrays(example, "example")
    if not row_count(sample):
        raise DataError("example= has no rows. Give a few rows as for predict.")
    return take_rows(sample, 0, SAMPLE_ROWS)


def random_rows(blank: Any) -> Any:
    """Return rows in the form of `blank`: random floats, and zeros for integers, which may be indices."""
    numbers = np.random.default_rng(0)

    def rows(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        shape = (EXAMPLE_ROWS, *leaf.shape[1:])
        return numbers.random(shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else np.zeros(shape, leaf.dtype)

    return tree_map(rows, blank)


def rows_for(spec: OpenvinoSpec) -> Any:
    """Return random rows for a converted model; None if the lengths of its axes are open."""
    blanks = {}
    for port in spec.inputs:
        if not port.shape or None in port.shape[1:]:
            return None
        blanks[port.name] = np.empty((0, *(side or 0 for side in port.data_shape[1:])), port.dtype)
    if spec.fixed_batch is not None:
        return None
    rows = random_rows(blanks)
    return rows if len(rows) > 1 else next(iter(rows.values()))


def checked_attributes(value: Any) -> dict[str, Any]:
    """Return attributes if they are JSON values."""
    attributes = {} if value is None else dict(check_mapping("attributes", value))
    try:
        return dict(json.loads(json.dumps(attributes, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"attributes=: expected JSON values ({error}).") from error


def history_records(history: Any) -> list[dict[str, Any]] | None:
    """Return a History, a list of records or Keras' history as records of JSON values."""
    if history is None:
        return None
    columns = getattr(history, "history", history)
    if isinstance(columns, Mapping):
        lengths = {len(values) for values in columns.values()}
        records = [{name: values[row] for name, values in columns.items()} for row in range(min(lengths, default=0))]
    elif isinstance(columns, Sequence) and not isinstance(columns, str | bytes):
        records = list(columns)
    else:
        raise wrong("history", history, "a History, a list of dicts, or a dict of lists")
    if not all(isinstance(record, Mapping) for record in records):
        raise wrong("history", history, "a History, a list of dicts, or a dict of lists")
    return [{str(name): _plain(value) for name, value in record.items()} for record in records]


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _versions(names: Sequence[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
