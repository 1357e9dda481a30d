"""The store: models, datasets and tokens, in a folder with SQLite, or in a bucket with PostgreSQL."""

from __future__ import annotations

import json
import os
from typing import Any

from orca.core.arguments import check_flag, check_path, known_arguments, optional
from orca.errors import ArgumentError
from orca.store.database import Database
from orca.store.datasets import Datasets
from orca.store.files import DRAFTS, Files
from orca.store.models import Models
from orca.store.runtime import Runtime
from orca.store.tokens import Tokens

DATABASE = "orca.db"
IDENTITY = "store.json"


class Store:
    """Models with versions, datasets and tokens.

    Args:
        path: A folder, which is created, or an fsspec URL such as "s3://bucket/path".
        db: URL of the database, such as "postgresql+psycopg://user@host/name"; by default SQLite in the folder.
        create: Whether to create the store if there is none.

    >>> import tempfile
    >>> om = Store(tempfile.mkdtemp())
    >>> om.models.list()
    []
    """

    @known_arguments
    def __init__(self, path: str | os.PathLike[str], db: str | None = None, *, create: bool = True) -> None:
        self.path = check_path("path", path, "the path of a folder, or a URL")
        url = optional(lambda name, value: check_path(name, value, "the URL of a database"))("db", db)
        self._db: str | None = url
        create = check_flag("create", create)
        self._files = Files(self.path)
        if url is None:
            if not self._files.is_local:
                raise ArgumentError(
                    f"path={self.path!r} is not a folder of this machine: pass db=, such as "
                    '"postgresql+psycopg://user@host/name".'
                )
            url = f"sqlite:///{self._files.root}/{DATABASE}"
        if create:
            self._files.create()
        self._database = Database(url, create)
        self.models = Models(self._database, self._files)
        self.datasets = Datasets(self, self._database, self._files)
        self.runtime = Runtime(self)
        self.tokens = Tokens(self._database)
        if self._db is not None:
            self._check_pair()

    def _check_pair(self) -> None:
        """Raise if the database is that of another folder; the folder keeps the database's id."""
        if self._files.folder.has(IDENTITY):
            own = json.loads(self._files.folder.read(IDENTITY)).get("id")
        elif self.models.list() or self.datasets.list():
            own = None
        else:
            self._files.folder.write(IDENTITY, json.dumps({"id": self._database.id}).encode())
            return
        if own != self._database.id:
            raise ArgumentError(f"db= {self._database!r} is the database of another store than {self.path!r}.")

    def verify(self) -> list[str]:
        """Compare all files with their checksums; return what is wrong, one sentence each, or an empty list."""
        return self.models.problems() + self.datasets.problems()

    def sweep(self) -> list[str]:
        """Remove what killed writers have left behind, and nothing of running ones; return the paths."""
        drafts = [path for path in self._files.walk(DRAFTS) if not self._database.is_running(path.split("/")[1])]
        for path in sorted({"/".join(path.split("/")[:2]) for path in drafts}):
            self._files.remove(path)
        removed = [*drafts, *self.models.sweep(), *self.datasets.sweep()]
        self._database.forget_writers()
        return removed

    def changes(self) -> int:
        """Return a number that grows with each change of the store; reading it is cheap."""
        return self._database.changes()

    def close(self) -> None:
        """Close idle connections to the database; the store can still be used."""
        self._database.close()

    def __repr__(self) -> str:
        return f"<Store: {self.path}>" if self._db is None else f"<Store: {self.path}, {self._database!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self._db)
