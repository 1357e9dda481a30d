"""The values of a store: a version of a model with its signature, as the database and the manifest describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Port:
    """An input or output of a model: its name, numpy dtype, and shape with -1 for any length."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the port as JSON values."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Port:
        """Return what `as_dict` describes."""
        return cls(str(entry["name"]), str(entry["dtype"]), tuple(int(side) for side in entry["shape"]))


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, in the model's order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the signature as JSON values."""
        return {
            "inputs": [port.as_dict() for port in self.inputs],
            "outputs": [port.as_dict() for port in self.outputs],
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Signature:
        """Return what `as_dict` describes."""
        return cls(
            tuple(Port.from_dict(port) for port in entry["inputs"]),
            tuple(Port.from_dict(port) for port in entry["outputs"]),
        )


@dataclass(frozen=True)
class Version:
    """A version of a model; it never changes, but for the aliases that point to it."""

    name: str
    number: int
    signature: Signature
    sha256: str
    """The checksum of the manifest, which has those of all files."""
    created: datetime
    attributes: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    kind: str = "openvino"
    """The framework or file format of the model that was put."""
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """All facts: files with checksums, packages, history, position, example."""

    @classmethod
    def create(
        cls, name: str, number: int, created: float, sha256: str, manifest: Mapping[str, Any], aliases: tuple[str, ...]
    ) -> Version:
        """Return the version that a row of the database describes."""
        return cls(
            name,
            number,
            Signature.from_dict(manifest["signature"]),
            sha256,
            datetime.fromtimestamp(created, UTC),
            manifest.get("attributes", {}),
            aliases,
            str(manifest.get("kind", "openvino")),
            manifest,
        )

    @property
    def folder(self) -> str:
        """The folder of its files, below that of the store."""
        return f"models/{self.name}/{self.number}"

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"
