"""The datasets of a store: put, append, get with columns and filters, and functions that return data."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import delete, insert, select, update

from orca.core.arguments import check_choice, check_flag, check_mapping, check_text, known_arguments, optional, wrong
from orca.errors import ArgumentError, DataError, NotStoredError, OrcaError, suggest
from orca.store import tables
from orca.store.data import kinds, virtual
from orca.store.data.parts import PartWriter, writer_of
from orca.store.database import Database
from orca.store.files import Files
from orca.store.names import Reference, check_name, parse
from orca.store.packing.facts import checked_attributes

if TYPE_CHECKING:
    from orca.store.store import Store

Names: TypeAlias = list[str]
Rows: TypeAlias = "list[_Row]"
FORMAT = 1
_TRIES = 3
"""How often `get` reads the manifest again because another process has replaced the parts meanwhile."""


class Datasets:
    """The datasets of a store. Each put or append writes new part files, then changes one row."""

    def __init__(self, store: Store, database: Database, files: Files) -> None:
        self._store = store
        self._database = database
        self._files = files

    @known_arguments
    def put(
        self,
        data: Any,
        name: str,
        *,
        append: bool = False,
        replace: bool = False,
        attributes: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Store data under a name; return its metadata.

        Args:
            data: A DataFrame, an Arrow table, arrays (also in dicts and lists), XShards, tf.train.Example records,
                JSON values, or a function marked with `virtualobj`.
            name: Letters, digits, ``_``, ``-`` and ``.``, in parts separated by ``/``.
            append: Add the rows to those that the dataset has.
            replace: Take the place of what the dataset has.
            attributes: JSON values to keep with the dataset.

        Raises:
            ArgumentError: The name exists, and neither `append` nor `replace` says what to do.
            DataError: The data cannot be stored, or does not fit what it is appended to.

        >>> import tempfile, pandas as pd
        >>> from orca import Store
        >>> om = Store(tempfile.mkdtemp())
        >>> om.datasets.put(pd.DataFrame({"x": [1, 5, 9]}), "numbers")["rows"]
        3
        >>> om.datasets.get("numbers", x__gt=4)["x"].tolist()
        [5, 9]
        """
        name = check_name("name", name)
        append, replace = check_flag("append", append), check_flag("replace", replace)
        if append and replace:
            raise ArgumentError("append=True, replace=True: choose one of them.")
        extra = checked_attributes(attributes)
        self._check_free(name, append or replace)
        kind, write = kinds.kind_of_data(data)
        with self._database.writer() as writer:
            parts = write(PartWriter(self._store.path, f"datasets/{name}", writer), name)
            manifest = {"format": FORMAT, "kind": kind, "attributes": extra, "parts": parts}
            try:
                replaced = self._commit(name, manifest, append, replace)
            except BaseException:
                self._remove(parts)
                raise
        self._remove(replaced)
        return self.metadata(name)

    def _check_free(self, name: str, may_exist: bool) -> None:
        if not may_exist and self._row(name) is not None:
            raise ArgumentError(
                f"name={name!r} exists already: pass append=True to add the rows, or replace=True to replace it."
            )

    def _commit(self, name: str, manifest: dict[str, Any], append: bool, replace: bool) -> list[dict[str, Any]]:
        """Change the row of a dataset in one transaction; return the parts that it no longer names."""
        table, now = tables.datasets, time.time()
        with self._database.writing() as connection:
            number = tables.locked_last(connection, tables.DATASET, name) + 1
            tables.set_last(connection, tables.DATASET, name, number)
            row = connection.execute(select(table).where(table.c.name == name)).first()
            if row is None:
                text = json.dumps(manifest)
                fresh = {"name": name, "number": number, "created": now, "modified": now, "manifest": text}
                connection.execute(insert(table).values(**fresh))
                return []
            if not append and not replace:
                raise ArgumentError(f"name={name!r} exists already: pass append=True or replace=True.")
            old = json.loads(row.manifest)
            if append:
                _check_appendable(old, manifest, name)
                attributes = {**old["attributes"], **manifest["attributes"]}
                manifest = {**old, "attributes": attributes, "parts": [*old["parts"], *manifest["parts"]]}
            changed = {"number": number, "modified": now, "manifest": json.dumps(manifest)}
            connection.execute(update(table).where(table.c.name == name).values(**changed))
        return [] if append else list(old["parts"])

    def get(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        as_: str | None = None,
        features: Mapping[str, Any] | None = None,
        trusted: bool = False,
        **filters: Any,
    ) -> Any:
        """Return a dataset in the form that it was put in, or another one.

        Args:
            name: The name; for a virtual dataset also ``name{a=b}``, which passes ``a="b"`` to its function.
            columns: Columns of a table, or entries of a dict of arrays, to read.
            as_: "pandas", "arrow" or "numpy" for tables, "xshards" for anything with rows, "tf.data" for records.
            features: ``{name: (dtype, shape)}`` of records, if they are not all alike.
            trusted: Whether to run a virtual dataset that this user's key has not signed.
            **filters: Rows of a table: ``x=5``, ``x__gt=5``; also ne, gte, lt, lte, in, between, contains,
                startswith, endswith and isnull. Parquet row groups without such rows are not read.

        Raises:
            NotStoredError: There is no such dataset.
            ColumnError: A column does not exist.
            UntrustedError: The dataset is a function that somebody else has signed.
        """
        reference = _reference(name)
        if columns is not None and (
            isinstance(columns, str)
            or not isinstance(columns, Sequence)
            or not columns
            or not all(isinstance(column, str) for column in columns)
        ):
            raise wrong("columns", columns, "a list of names")
        form = optional(lambda key, value: check_choice(key, value, kinds.FORMS, also="None"))("as_", as_)
        view = kinds.View(form, columns, filters, optional(check_mapping)("features", features))
        trusted = check_flag("trusted", trusted)
        row = self._found(reference.name)
        if row.manifest["kind"] == "virtual":
            return self._call(row, reference.options, view, trusted)
        if reference.options:
            raise ArgumentError(f"name={name!r}: only virtual datasets take options in braces.")
        return self._retried(row, lambda current: kinds.read(self._files, self._store.path, current.manifest, view))

    def _call(self, row: _Row, options: Mapping[str, str], view: kinds.View, trusted: bool) -> Any:
        """Run the function of a virtual dataset."""
        if view.form is not None or view.columns is not None or view.features is not None:
            raise ArgumentError("as_=, columns= and features= are not for virtual datasets, whose function decides.")
        content = kinds.local_paths(self._files, row.manifest["parts"])[0].read_bytes()
        function = virtual.open_virtual(content, row.name, trusted)
        extras = {"method": "get", "data": None, "meta": _described(row), "store": self._store}
        return virtual.call(function, {**options, **view.filters}, extras)

    def rows(self, name: str, trusted: bool = False) -> Any:
        """Return a dataset as something that an Estimator accepts: records as XShards, all others as they are."""
        reference = _reference(name)
        kind = self._found(reference.name).manifest["kind"]
        return self.get(name, as_="xshards" if kind == "records" else None, trusted=trusted)

    def list(self, pattern: str = "*") -> Names:
        """Return the names of the datasets that match a pattern with ``*``, sorted."""
        check_text("pattern", pattern, "a pattern such as 'flowers/*'")
        with self._database.reading() as connection:
            names = connection.execute(select(tables.datasets.c.name).order_by(tables.datasets.c.name)).scalars().all()
        return [name for name in names if fnmatch.fnmatchcase(name, pattern)]

    def exists(self, name: str) -> bool:
        """Return whether there is a dataset of this name."""
        return self._row(check_name("name", name)) is not None

    def metadata(self, name: str) -> dict[str, Any]:
        """Return all that is known of a dataset, as JSON values."""
        return _described(self._found(check_name("name", name)))

    def drop(self, name: str) -> None:
        """Remove a dataset."""
        name = check_name("name", name)
        self._found(name)
        with self._database.writing() as connection:
            tables.locked_last(connection, tables.DATASET, name)
            query = select(tables.datasets.c.manifest).where(tables.datasets.c.name == name)
            text = connection.execute(query).scalar()
            connection.execute(delete(tables.datasets).where(tables.datasets.c.name == name))
        self._remove(json.loads(text)["parts"] if text is not None else [])

    # Files

    def _remove(self, parts: Sequence[Mapping[str, Any]]) -> None:
        for part in parts:
            with contextlib.suppress(OSError):
                self._files.remove(str(part["file"]))

    def problems(self) -> Names:
        """Return what is wrong with the files of all datasets, one sentence each."""
        sentences = []
        for row in self._rows():
            for part in row.manifest["parts"]:
                try:
                    self._files.check(str(part["file"]), str(part["sha256"]))
                except (DataError, OSError) as error:
                    sentences.append(f"{row.name}: {error}")
        return sentences

    def sweep(self) -> Names:
        """Remove part files that no dataset names and whose writer has ended; return their paths."""
        # In this order: what a writer that has ended did commit is visible in a later read.
        paths = [path for path in self._files.walk("datasets") if not self._database.is_running(writer_of(path))]
        named = {str(part["file"]) for row in self._rows() for part in row.manifest["parts"]}
        leftovers = [path for path in paths if path not in named]
        for path in leftovers:
            self._files.remove(path)
        return leftovers

    # Rows

    def _rows(self) -> Rows:
        with self._database.reading() as connection:
            rows = connection.execute(select(tables.datasets).order_by(tables.datasets.c.name)).all()
        return [_Row(row) for row in rows]

    def _row(self, name: str) -> _Row | None:
        with self._database.reading() as connection:
            row = connection.execute(select(tables.datasets).where(tables.datasets.c.name == name)).first()
        return None if row is None else _Row(row)

    def _found(self, name: str) -> _Row:
        row = self._row(name)
        if row is None:
            hint = suggest(name, self.list())
            raise NotStoredError(f"name={name!r}: there is no dataset of this name in the store.{hint}")
        return row

    def _retried(self, row: _Row, read: Callable[[_Row], Any]) -> Any:
        """Read a dataset; again if another process has replaced its parts meanwhile."""
        for _ in range(_TRIES):
            try:
                return read(row)
            except (OSError, DataError) as error:
                current = self._found(row.name)
                if current.number == row.number:
                    if isinstance(error, OrcaError):
                        raise
                    raise DataError(f"The store is damaged: {error}") from error
                row = current
        return read(row)


class _Row:
    """A dataset as the database describes it."""

    def __init__(self, row: Any) -> None:
        self.name = str(row.name)
        self.number = int(row.number)
        self.created, self.modified = (datetime.fromtimestamp(time, UTC) for time in (row.created, row.modified))
        self.manifest: dict[str, Any] = json.loads(row.manifest)


def _reference(name: Any) -> Reference:
    reference = parse("name", name, options=True)
    if reference.ref is not None or reference.back:
        raise ArgumentError(f"name={name!r}: datasets have no versions. Pass the name alone.")
    return reference


def _check_appendable(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> None:
    if old["kind"] != new["kind"]:
        raise DataError(f"append=True: the data is {new['kind']}, the dataset {name!r} holds {old['kind']}.")
    if old["parts"] and new["parts"]:
        kinds.check_same(old["kind"], old["parts"][0], new["parts"][0], name)


def _described(row: _Row) -> dict[str, Any]:
    parts = row.manifest["parts"]
    first = parts[0] if parts else {}
    return {
        "name": row.name,
        "kind": row.manifest["kind"],
        "rows": sum(int(part["rows"]) for part in parts),
        "bytes": sum(int(part["size"]) for part in parts),
        "parts": len(parts),
        "changes": row.number,
        "created": row.created.isoformat(),
        "modified": row.modified.isoformat(),
        "attributes": row.manifest["attributes"],
        **{key: first[key] for key in ("columns", "dtypes", "features", "source") if key in first},
    }
