"""The tables of a store's database, and the statements that several modules share."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    select,
    update,
)

METADATA = MetaData()
FORMAT = 1
MODEL, DATASET = "model", "dataset"

about = Table(
    "orca_about",
    METADATA,
    Column("key", String(32), primary_key=True),
    Column("text", Text),
    Column("number", BigInteger),
)
"""The format, the store's id, and the number of changes."""
names = Table(
    "orca_names",
    METADATA,
    Column("kind", String(16), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("last", Integer, nullable=False),
)
"""The last number of each name. The row stays when versions are dropped, so that no number is used twice."""
versions = Table(
    "orca_versions",
    METADATA,
    Column("name", String(128), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("created", Float, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("manifest", Text, nullable=False),
)
aliases = Table(
    "orca_aliases",
    METADATA,
    Column("name", String(128), primary_key=True),
    Column("alias", String(64), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("moved", Float, nullable=False),
)
datasets = Table(
    "orca_datasets",
    METADATA,
    Column("name", String(128), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("created", Float, nullable=False),
    Column("modified", Float, nullable=False),
    Column("manifest", Text, nullable=False),
)
tokens = Table(
    "orca_tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("label", String(128), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("pattern", String(256), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float),
)


def locked_last(connection: Connection, kind: str, name: str) -> int:
    """Return the last number of a name; nobody else adds or removes its versions before this transaction ends."""
    row = (names.c.kind == kind) & (names.c.name == name)
    query = select(names.c.last).where(row).with_for_update()
    last = connection.execute(query).scalar()
    if last is None:
        connection.execute(insert_missing(connection, names, {"kind": kind, "name": name, "last": 0}))
        last = connection.execute(query).scalar_one()
    return int(last)


def set_last(connection: Connection, kind: str, name: str, number: int) -> None:
    """Record the last number of a name."""
    connection.execute(update(names).where(names.c.kind == kind, names.c.name == name).values(last=number))


def point(connection: Connection, name: str, alias: str, number: int) -> None:
    """Let an alias point to a version."""
    row = (aliases.c.name == name) & (aliases.c.alias == alias)
    changed = connection.execute(update(aliases).where(row).values(number=number, moved=time.time()))
    if not changed.rowcount:
        connection.execute(insert(aliases).values(name=name, alias=alias, number=number, moved=time.time()))


def insert_missing(connection: Connection, table: Table, values: dict[str, Any]) -> Any:
    """Return an insert that does nothing if another process was faster."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).values(**values).on_conflict_do_nothing()
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).values(**values).on_conflict_do_nothing()
