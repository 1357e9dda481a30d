"""The versions of models in the database: how references are resolved, and how versions and aliases change."""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from orca.errors import ArgumentError, NotStoredError, listed, suggest
from orca.store import tables
from orca.store.database import Database
from orca.store.names import Reference
from orca.store.values import Version

Move = Callable[[int], None]
"""Moves the files of a new version with this number to their place."""


class Records:
    """The versions of all models of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, reference: Reference) -> Version:
        """Return the version that a reference means, or raise NotStoredError."""
        with self._database.reading() as connection:
            return _find(connection, reference)

    def names(self, pattern: str = "*") -> list[str]:
        """Return the names of all models that match a pattern, sorted."""
        with self._database.reading() as connection:
            return [name for name in _names(connection) if fnmatch.fnmatchcase(name, pattern)]

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a model, the oldest first; none if there is no such model."""
        with self._database.reading() as connection:
            query = select(tables.versions).where(tables.versions.c.name == name).order_by(tables.versions.c.number)
            rows = connection.execute(query).all()
            pointers = _aliases(connection, name)
        return [_version(row, pointers) for row in rows]

    def aliases(self, name: str) -> dict[str, int]:
        """Return the aliases of a model with the numbers of their versions."""
        with self._database.reading() as connection:
            _check_name(connection, name)
            return _aliases(connection, name)

    def add(self, name: str, manifest: str, sha256: str, tags: Sequence[str], move: Move) -> Version:
        """Add a version in one transaction: its number, its files, its row and the aliases that move to it."""
        created = time.time()
        with self._database.writing() as connection:
            number = tables.locked_last(connection, tables.MODEL, name) + 1
            move(number)
            tables.set_last(connection, tables.MODEL, name, number)
            row = {"name": name, "number": number, "created": created, "sha256": sha256, "manifest": manifest}
            connection.execute(insert(tables.versions).values(**row))
            for tag in tags:
                tables.point(connection, name, tag, number)
        return Version.create(name, number, created, sha256, json.loads(manifest), tuple(sorted(set(tags))))

    def point(self, reference: Reference, alias: str) -> Version:
        """Move an alias to a version; return the version with its aliases."""
        with self._database.writing() as connection:
            tables.locked_last(connection, tables.MODEL, reference.name)
            tables.point(connection, reference.name, alias, _find(connection, reference).number)
            return _find(connection, Reference(reference.name, alias))

    def unpoint(self, name: str, alias: str) -> None:
        """Remove an alias."""
        with self._database.writing() as connection:
            _check_name(connection, name)
            row = (tables.aliases.c.name == name) & (tables.aliases.c.alias == alias)
            if not connection.execute(delete(tables.aliases).where(row)).rowcount:
                raise _no_alias(connection, name, alias)

    def drop(self, reference: Reference, force: bool) -> list[Version]:
        """Remove one version, or with a plain name all; return what was removed."""
        name = reference.name
        with self._database.writing() as connection:
            tables.locked_last(connection, tables.MODEL, name)
            whole = reference.ref is None and not reference.back
            pointers = _aliases(connection, name)
            if whole:
                _check_name(connection, name)
                query = select(tables.versions).where(tables.versions.c.name == name)
                dropped = [_version(row, pointers) for row in connection.execute(query)]
            else:
                dropped = [_find(connection, reference)]
            used = [alias for version in dropped for alias in version.aliases]
            if used and not force:
                raise ArgumentError(
                    f"name={str(reference)!r}: the aliases {listed(used)} point to what would be dropped. Move them "
                    "to another version, or pass force=True."
                )
            for version in dropped:
                for table in (tables.versions, tables.aliases):
                    connection.execute(delete(table).where(table.c.name == name, table.c.number == version.number))
        return dropped

    def sweep(self, name: str, number: int, remove: Callable[[], list[str]]) -> list[str]:
        """Call `remove` unless there is such a version; no put of this name runs meanwhile."""
        with self._database.reading() as connection:
            if _row(connection, name, number):
                return []
        with self._database.writing() as connection:
            tables.locked_last(connection, tables.MODEL, name)
            return [] if _row(connection, name, number) else remove()

    def all_rows(self) -> list[Version]:
        """Return every version of every model."""
        with self._database.reading() as connection:
            query = select(tables.versions).order_by(tables.versions.c.name, tables.versions.c.number)
            return [_version(row, {}) for row in connection.execute(query)]


def _row(connection: Connection, name: str, number: int) -> bool:
    query = select(tables.versions.c.number).where(tables.versions.c.name == name, tables.versions.c.number == number)
    return connection.execute(query).first() is not None


def _names(connection: Connection) -> list[str]:
    query = select(tables.versions.c.name).distinct().order_by(tables.versions.c.name)
    return [str(name) for name in connection.execute(query).scalars()]


def _aliases(connection: Connection, name: str) -> dict[str, int]:
    query = select(tables.aliases.c.alias, tables.aliases.c.number).where(tables.aliases.c.name == name)
    return {str(alias): int(number) for alias, number in connection.execute(query.order_by(tables.aliases.c.alias))}


def _version(row: Any, pointers: dict[str, int]) -> Version:
    own = tuple(alias for alias, number in pointers.items() if number == row.number)
    return Version.create(row.name, row.number, row.created, row.sha256, json.loads(row.manifest), own)


def _check_name(connection: Connection, name: str) -> None:
    query = select(tables.versions.c.number).where(tables.versions.c.name == name).limit(1)
    if connection.execute(query).first() is None:
        hint = suggest(name, _names(connection))
        raise NotStoredError(f"name={name!r}: there is no model of this name in the store.{hint}")


def _no_alias(connection: Connection, name: str, alias: str) -> NotStoredError:
    pointers = _aliases(connection, name)
    known = f" Aliases: {listed(pointers)}." if pointers else " It has no alias."
    return NotStoredError(f"name='{name}@{alias}': the model has no such alias.{suggest(alias, pointers) or known}")


def _find(connection: Connection, reference: Reference) -> Version:
    name, number = reference.name, reference.ref
    pointers = _aliases(connection, name)
    if isinstance(number, str):
        if number not in pointers:
            _check_name(connection, name)
            raise _no_alias(connection, name, number)
        number = pointers[number]
    query = select(tables.versions).where(tables.versions.c.name == name).order_by(tables.versions.c.number.desc())
    if number is not None:
        query = query.where(tables.versions.c.number <= number)
    rows = connection.execute(query.limit(reference.back + 1)).all()
    missing = len(rows) <= reference.back or (number is not None and rows[0].number != number)
    if missing:
        _check_name(connection, name)
        every = select(tables.versions.c.number).where(tables.versions.c.name == name)
        numbers = sorted(connection.execute(every).scalars())
        raise NotStoredError(f"name={str(reference)!r}: there is no such version. Versions: {listed(numbers)}.")
    return _version(rows[-1], pointers)
