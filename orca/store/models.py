"""The models of a store: put, get, list, versions and aliases."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from orca.core.arguments import (
    check_example,
    check_flag,
    check_mapping,
    check_path,
    check_text,
    known_arguments,
    optional,
    wrong,
)
from orca.errors import ArgumentError, DataError, NotStoredError
from orca.store.cache import fetched
from orca.store.database import Database
from orca.store.files import Files
from orca.store.names import check_alias, check_name, parse
from orca.store.packing.facts import MANIFEST, NATIVE, Request, checked_attributes, history_records
from orca.store.records import Records
from orca.store.values import Version

if TYPE_CHECKING:
    from orca.estimator import Estimator
    from orca.store.packing.models import Stored

IR = ("model.xml", "model.bin")
"""The model in OpenVINO's format, where OpenVINO Model Server looks for it."""
Names: TypeAlias = list[str]
Versions: TypeAlias = list[Version]


class Models:
    """The models of a store, each with immutable versions 1, 2, 3 and aliases that can move."""

    def __init__(self, database: Database, files: Files) -> None:
        self._database = database
        self._files = files
        self._records = Records(database)

    @known_arguments
    def put(
        self,
        obj: Any,
        name: str,
        *,
        example: Any = None,
        tag: str | Sequence[str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        history: Any = None,
        trusted: bool = False,
    ) -> Version:
        """Store a model as the next version of a name.

        The version holds the model in its own format, and converted to OpenVINO. Both are compared on the example.

        Args:
            obj: An Estimator, a Keras, torch or OpenVINO model, or the path of an IR, .onnx, .keras, .tflite,
                TorchScript or .pt2 file or of a SavedModel folder.
            name: Letters, digits, ``_``, ``-`` and ``.``, in parts separated by ``/``.
            example: A few rows of input. Keras and OpenVINO models and fitted estimators do not need it.
            tag: Alias, or a list of them, that moves to the new version in the same transaction.
            attributes: JSON values to keep with the version.
            history: The History of the training, or a list of records.
            trusted: Whether a .keras file may run the code that it holds.

        Raises:
            ArgumentError: An argument is wrong, or a store does not take such a model.
            DataError: The converted model gives other numbers, or the example does not fit.
            UntrustedError: A .keras file holds code.
        """
        history_records(history)
        request = Request(
            optional(check_example)("example", example),
            checked_attributes(attributes),
            history,
            check_flag("trusted", trusted),
        )
        check_name("name", name)
        tags = _tags(tag)
        from orca.store.packing.models import pack

        return self.add(name, lambda folder: pack(obj, folder, request), tags)

    def add(self, name: str, fill: Callable[[Path], Mapping[str, Any]], tags: Sequence[str] = ()) -> Version:
        """Store what `fill` writes to a folder as the next version; it returns the manifest."""
        with self._database.writer() as writer, self._files.draft(writer) as draft:
            manifest = json.dumps(fill(draft), allow_nan=False, sort_keys=True)
            (draft / MANIFEST).write_text(manifest)
            sha256 = hashlib.sha256(manifest.encode()).hexdigest()
            self._files.stage(writer, draft)
            names = [*json.loads(manifest)["files"], MANIFEST]

            def move(number: int) -> None:
                self._files.move(writer, f"models/{name}/{number}", names)

            return self._records.add(name, manifest, sha256, tags, move)

    @known_arguments
    def get(
        self,
        name: str,
        *,
        into: Any = None,
        trusted: bool = False,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return a model, ready to predict, and for Keras to fit.

        A Keras model comes back as one, a Keras Estimator as an Estimator. All others come back as an Estimator that
        predicts with the converted model, unless `into` is given.

        Args:
            name: ``name``, ``name@3``, ``name@alias``, ``name@latest`` or ``name^``.
            into: An Estimator or torch module of the same kind, which receives the weights and is returned.
            trusted: Whether the version may run code in this process: Lambda layers of Keras, and SavedModel,
                TorchScript and .pt2 programs, which are then returned as such.
            custom_objects: Classes and functions that a Keras model uses, by name.

        Raises:
            NotStoredError: There is no such model, version or alias.
            UntrustedError: The model holds code, and is not trusted.
            DataError: A file is missing or damaged.
        """
        reference = parse("name", name)
        trusted = check_flag("trusted", trusted)
        custom = optional(check_mapping)("custom_objects", custom_objects)
        from orca.store.packing.models import check_target, load_into, open_native

        if into is not None:
            check_target(into)
        stored = self.stored(self._records.find(reference))
        return open_native(stored, trusted, custom) if into is None else load_into(stored, into)

    def export(self, name: str, path: str | os.PathLike[str], *, trusted: bool = False) -> Names:
        """Copy the verified files of a version to a new folder; return their names.

        Programs (SavedModel, TorchScript, .pt2) are only copied with ``trusted=True``; the converted model always is.
        """
        reference, trusted = parse("name", name), check_flag("trusted", trusted)
        target = Path(check_path("path", path, "the path of a new folder"))
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ArgumentError(f"path={str(target)!r} exists already. Choose a new folder.")
        stored = self.stored(self._records.find(reference))
        is_program = stored.native.get("form") == "program"
        names = [file for file in stored.manifest["files"] if trusted or not is_program or not file.startswith(NATIVE)]
        for file in names:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(stored.folder / file, target / file)
        return names

    def predictor(self, version: Version, workers: int = 1) -> Estimator:
        """Return an Estimator that predicts with the converted model, which is data and runs no code."""
        from orca.store.packing.models import Stored, open_ir

        return open_ir(Stored(str(version), self.ir_path(version).parent, version.manifest), workers)

    def stored(self, version: Version) -> Stored:
        """Return the files of a version on this machine, all of them verified."""
        from orca.store.packing.models import Stored

        names = list(version.manifest.get("files", {}))
        return Stored(
            str(version), self._local(version, {name: _checksum(version, name) for name in names}), version.manifest
        )

    def resolve(self, name: str) -> Version:
        """Return the version that ``name``, ``name@3``, ``name@alias``, ``name@latest`` or ``name^`` means.

        Raises:
            NotStoredError: There is no such model, version or alias.
        """
        return self._records.find(parse("name", name))

    def exists(self, name: str) -> bool:
        """Return whether there is a model, or with ``name@3`` or ``name@alias`` such a version."""
        reference = parse("name", name)
        with contextlib.suppress(NotStoredError):
            self._records.find(reference)
            return True
        return False

    def list(self, pattern: str = "*") -> Names:
        """Return the names of the models that match a pattern with ``*``, sorted."""
        return self._records.names(check_text("pattern", pattern, "a pattern such as 'flowers/*'"))

    def versions(self, name: str) -> Versions:
        """Return all versions of a model, the oldest first."""
        versions = self._records.versions(check_name("name", name))
        return versions or [self.resolve(name)]

    def metadata(self, name: str) -> dict[str, Any]:
        """Return all that is known of a version, as JSON values."""
        version = self.resolve(name)
        return {
            "name": version.name,
            "version": version.number,
            "created": version.created.isoformat(),
            "sha256": version.sha256,
            "aliases": list(version.aliases),
            **version.manifest,
        }

    def aliases(self, name: str) -> dict[str, int]:
        """Return the aliases of a model with the numbers of their versions."""
        return self._records.aliases(check_name("name", name))

    @known_arguments
    def alias(self, name: str, alias: str) -> Version:
        """Let an alias point to the version ``name@3``, ``name@other-alias`` or, by a plain name, the latest one."""
        return self._records.point(parse("name", name), check_alias("alias", alias))

    def unalias(self, name: str, alias: str) -> None:
        """Remove an alias; the version stays."""
        self._records.unpoint(check_name("name", name), check_alias("alias", alias))

    @known_arguments
    def drop(self, name: str, *, force: bool = False) -> Versions:
        """Remove one version (``name@3``), or with a plain name all versions; return what was removed.

        Numbers are never used again. A version with an alias is only removed with ``force=True``.
        """
        dropped = self._records.drop(parse("name", name), check_flag("force", force))
        for version in dropped:
            self._files.remove(version.folder)
        return dropped

    def ir_path(self, version: Version) -> Path:
        """Return the path of a version's .xml on this machine, with its .bin beside it, both verified.

        Raises:
            DataError: A file is missing, damaged or a link.
        """
        checksums = {name: _checksum(version, name) for name in IR}
        return self._local(version, checksums) / IR[0]

    def _local(self, version: Version, checksums: Mapping[str, str]) -> Path:
        """Return a folder of this machine with files of a version, verified."""
        if self._files.root is None:
            key = hashlib.sha256(json.dumps(sorted(checksums.items())).encode()).hexdigest()
            return fetched(self._files, version.folder, checksums, key)
        for name, sha256 in checksums.items():
            self._files.check(f"{version.folder}/{name}", sha256)
        return self._files.root / version.folder

    def problems(self) -> Names:
        """Return what is wrong with the files of all versions, one sentence each."""
        sentences = []
        for version in self._records.all_rows():
            files = version.manifest.get("files", {})
            checks = {**{name: str(entry["sha256"]) for name, entry in files.items()}, MANIFEST: version.sha256}
            for name, sha256 in checks.items():
                try:
                    self._files.check(f"{version.folder}/{name}", sha256)
                except (DataError, OSError) as error:
                    sentences.append(f"{version}: {error}")
        return sentences

    def sweep(self) -> Names:
        """Remove files that no version names and that no running put is about to name; return their paths."""
        folders = sorted({"/".join(parts) for path in self._files.walk("models") if (parts := _version_folder(path))})
        removed: Names = []
        for folder in folders:
            name, _, number = folder.removeprefix("models/").rpartition("/")
            removed += self._records.sweep(name, int(number), functools.partial(self._emptied, folder))
        return removed

    def _emptied(self, folder: str) -> Names:
        paths = self._files.walk(folder)
        self._files.remove(folder)
        return paths


def _version_folder(path: str) -> list[str]:
    """Return the parts of a path up to the number of its version; none if it has no number."""
    parts = path.split("/")
    for place in range(2, len(parts) - 1):
        if parts[place].isdecimal():
            return parts[: place + 1]
    return []


def _tags(tag: Any) -> list[str]:
    if tag is None or isinstance(tag, str):
        return [] if tag is None else [check_alias("tag", tag)]
    if not isinstance(tag, Sequence) or not tag or isinstance(tag, bytes):
        raise wrong("tag", tag, "a name or a list of names")
    return [check_alias("tag", entry) for entry in tag]


def _checksum(version: Version, name: str) -> str:
    files: Mapping[str, Any] = version.manifest.get("files", {})
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"The store is damaged: the manifest of {version} names {name!r}.")
    if name not in files:
        raise DataError(f"The store is damaged: the manifest of {version} does not name {name!r}.")
    return str(files[name]["sha256"])


__all__ = ["IR", "Models"]
