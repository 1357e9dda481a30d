"""A store's database, SQLite or PostgreSQL: transactions, its set-up by the first process, and marks of writers.

A writer holds a lock for as long as it works on files that no row names yet. The lock ends with its process, however
that ends, so a sweep knows which files are leftovers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, select, text, update
from sqlalchemy.exc import ArgumentError as UrlError
from sqlalchemy.exc import NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from orca.errors import ArgumentError, DataError, MissingPackageError
from orca.store import tables

_BUSY_MS = 60_000
"""How long a transaction of SQLite waits for those of other processes."""
_SETUP = 0x0C4A


class Database:
    """The tables of one store."""

    def __init__(self, url: str, create: bool = True) -> None:
        self.url = _checked(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.file = Path(str(self.url.database)).absolute() if self.is_sqlite else None
        self._engine: Engine | None = None
        self._pid = 0
        self._set_up(create)

    def __repr__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that only reads."""
        with self._connected() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction; it is committed, and counted as a change, unless the block raises."""
        with self._connected(immediate=True) as connection:
            yield connection
            # Last, as this row is locked for all other writers until the commit.
            row = tables.about.c.key == "changes"
            connection.execute(update(tables.about).where(row).values(number=tables.about.c.number + 1))

    def changes(self) -> int:
        """Return a number that grows with each commit."""
        with self.reading() as connection:
            query = select(tables.about.c.number).where(tables.about.c.key == "changes")
            return int(connection.execute(query).scalar_one())

    @contextmanager
    def _connected(self, immediate: bool = False) -> Iterator[Connection]:
        try:
            with self._open().connect() as connection:
                if not self.is_sqlite:
                    with connection.begin():
                        yield connection
                    return
                # SQLite's driver begins transactions too late to read and write in one: they are begun here.
                connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
                try:
                    yield connection
                    connection.exec_driver_sql("COMMIT")
                except BaseException:
                    connection.exec_driver_sql("ROLLBACK")
                    raise
        except OperationalError as error:
            reason = str(error.orig).strip().splitlines()[0]
            raise DataError(f"The database {self!r} cannot be reached: {reason}") from error

    def _open(self) -> Engine:
        if self._engine is None or self._pid != os.getpid():
            # A forked child must not use its parent's connections.
            self._engine, self._pid = _engine(self.url), os.getpid()
        return self._engine

    def close(self) -> None:
        """Close idle connections; the next transaction opens new ones."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()
        self._engine = None

    # The first use

    def _set_up(self, create: bool) -> None:
        if self.file is not None and not self.file.exists() and not create:
            raise ArgumentError(f"There is no store: {str(self.file)!r} does not exist.")
        with self._one_at_a_time():
            with self._open().connect() as connection:
                is_new = not inspect(connection).has_table(tables.about.name)
            if is_new and not create:
                raise ArgumentError(f"There is no store: the database {self!r} has no tables of one.")
            if is_new:
                self._create()
        with self.reading() as connection:
            rows = connection.execute(select(tables.about.c.key, tables.about.c.text)).all()
            facts = {str(row.key): row.text for row in rows}
        if facts.get("format") != str(tables.FORMAT):
            raise DataError(
                f"The database {self!r} has format {facts.get('format')!r}; this version of Orca reads "
                f"{tables.FORMAT}. Open it with the version that created it, or a later one."
            )
        self.id = str(facts["id"])

    def _create(self) -> None:
        with self._open().connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        with self._connected(immediate=True) as connection:
            tables.METADATA.create_all(connection)
            facts: list[dict[str, Any]] = [
                {"key": "format", "text": str(tables.FORMAT), "number": None},
                {"key": "id", "text": uuid.uuid4().hex, "number": None},
                {"key": "changes", "text": None, "number": 0},
            ]
            connection.execute(tables.about.insert(), facts)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Let one process after another look for the tables, and create them."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file.with_name(f"{self.file.name}.lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            return
        try:
            connection = self._open().connect()
        except OperationalError as error:
            reason = str(error.orig).strip().splitlines()[0]
            raise DataError(f"The database {self!r} cannot be reached: {reason}") from error
        with connection, connection.begin():
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SETUP})
            yield

    # Marks of writers

    @contextmanager
    def writer(self) -> Iterator[str]:
        """Provide the id of a writer, which counts as running until the block or this process ends."""
        writer = uuid.uuid4().hex[:15]
        if self.file is None:
            # Outside of a transaction: a long put must not keep one open.
            with self._open().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": int(writer, 16)})
                try:
                    yield writer
                finally:
                    # A connection that is lost has given up its locks; what was committed stays.
                    with contextlib.suppress(SQLAlchemyError):
                        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": int(writer, 16)})
            return
        folder = self._writers()
        folder.mkdir(exist_ok=True)
        path = folder / writer
        with open(path, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield writer
            finally:
                path.unlink(missing_ok=True)

    def is_running(self, writer: str) -> bool:
        """Return whether a writer is still at work; False for what is not the id of one."""
        if len(writer) != 15 or any(letter not in "0123456789abcdef" for letter in writer):
            return False
        if self.file is None:
            with self._open().connect() as connection, connection.begin():
                query = text("SELECT pg_try_advisory_xact_lock(:key)")
                return not connection.execute(query, {"key": int(writer, 16)}).scalar_one()
        try:
            with open(self._writers() / writer) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def forget_writers(self) -> None:
        """Remove the marks of writers that were killed."""
        folder = self._writers() if self.file is not None else None
        for mark in folder.iterdir() if folder is not None and folder.is_dir() else ():
            if not self.is_running(mark.name):
                with contextlib.suppress(OSError):
                    mark.unlink()

    def _writers(self) -> Path:
        assert self.file is not None
        return self.file.with_name(f"{self.file.name}.writers")


def _checked(url: str) -> URL:
    expected = 'a URL such as "postgresql+psycopg://user@host/name" or "sqlite:///orca.db"'
    try:
        parsed = make_url(url)
    except UrlError:
        raise ArgumentError(f"db=: expected {expected}.") from None
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise ArgumentError(f"db=: {kind!r} is not supported; expected {expected}.")
    if kind == "sqlite" and (not parsed.database or parsed.database == ":memory:"):
        raise ArgumentError("db=: a database in memory would lose its models; expected sqlite:///path.")
    return parsed


def _engine(url: URL) -> Engine:
    is_sqlite = url.get_backend_name() == "sqlite"
    try:
        if is_sqlite:
            engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
            event.listen(engine, "connect", _configure)
            return engine
        return create_engine(url, pool_pre_ping=True, pool_size=4, max_overflow=12)
    except (ImportError, NoSuchModuleError) as error:
        raise MissingPackageError(
            f'db= needs a driver that is not installed ({error}). Run: pip install "orca-estimator[postgres]", and '
            "write postgresql+psycopg://…"
        ) from error


def _configure(connection: Any, record: object) -> None:
    for pragma in (f"busy_timeout={_BUSY_MS}", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")
