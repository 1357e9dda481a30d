"""Tokens for the server: shown once, stored as a hash, each with a pattern of the names that it may use."""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, insert, select

from orca.core.arguments import check_number, check_text, known_arguments, optional, wrong
from orca.errors import NotStoredError, suggest
from orca.store import tables
from orca.store.database import Database

_PREFIX = "orca"
_NOBODY = hashlib.sha256(secrets.token_bytes(32)).hexdigest()


@dataclass(frozen=True)
class Token:
    """What is known of a token: not the token itself."""

    id: str
    label: str
    pattern: str
    created: datetime
    expires: datetime | None = None

    def allows(self, model: str) -> bool:
        """Return whether the token may use a model of this name, and has not expired."""
        in_time = self.expires is None or datetime.now(UTC) < self.expires
        return in_time and fnmatch.fnmatchcase(model, self.pattern)


class Tokens:
    """The tokens of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @known_arguments
    def add(self, label: str, *, pattern: str = "*", days: float | None = None) -> str:
        """Create a token with 256 random bits and return it; the store keeps only its hash.

        Args:
            label: A name for people.
            pattern: The models that it may use, such as ``flowers/*``.
            days: Days until it expires; None for no limit.
        """
        label, pattern = _text("label", label, 128), _text("pattern", pattern, 256)
        days = optional(lambda name, value: check_number(name, value, 1e-6, "a number of days above 0"))("days", days)
        number, secret, now = secrets.token_hex(8), secrets.token_urlsafe(32), time.time()
        row = {"id": number, "label": label, "digest": _digest(secret), "pattern": pattern, "created": now}
        with self._database.writing() as connection:
            expires = None if days is None else now + days * 86_400
            connection.execute(insert(tables.tokens).values(**row, expires=expires))
        return f"{_PREFIX}_{number}_{secret}"

    def list(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(tables.tokens).order_by(tables.tokens.c.created)).all()
        return [_token(row) for row in rows]

    def drop(self, label: str) -> int:
        """Remove the token with this label or id; return how many had it."""
        check_text("label", label, "the label or id of a token")
        with self._database.writing() as connection:
            match = (tables.tokens.c.label == label) | (tables.tokens.c.id == label)
            count = int(connection.execute(delete(tables.tokens).where(match)).rowcount)
            if not count:
                labels = connection.execute(select(tables.tokens.c.label)).scalars().all()
                raise NotStoredError(f"label={label!r}: there is no such token.{suggest(label, labels)}")
        return count

    def find(self, token: str) -> Token | None:
        """Return what is known of a token; None if it is not one of this store."""
        prefix, _, rest = str(token).partition("_")
        number, _, secret = rest.partition("_")
        row = None
        if prefix == _PREFIX and len(number) == 16 and number.isalnum():
            with self._database.reading() as connection:
                row = connection.execute(select(tables.tokens).where(tables.tokens.c.id == number)).first()
        # Compared in any case: an unknown id takes as long as a wrong secret.
        right = hmac.compare_digest(_digest(secret), _NOBODY if row is None else str(row.digest))
        return _token(row) if right and row is not None else None

    def check(self, token: str, model: str) -> bool:
        """Return whether a token exists, has not expired, and may use this model."""
        match = self.find(token)
        return match is not None and match.allows(model)


def _digest(secret: str) -> str:
    # A secret of 256 random bits needs no slow hash.
    return hashlib.sha256(secret.encode()).hexdigest()


def _text(name: str, value: object, longest: int) -> str:
    text = check_text(name, value)
    if len(text) > longest or not text.isprintable():
        raise wrong(name, value, f"a printable text of at most {longest} characters")
    return text


def _token(row: object) -> Token:
    created = datetime.fromtimestamp(row.created, UTC)  # type: ignore[attr-defined]
    expires = None if row.expires is None else datetime.fromtimestamp(row.expires, UTC)  # type: ignore[attr-defined]
    return Token(row.id, row.label, row.pattern, created, expires)  # type: ignore[attr-defined]
