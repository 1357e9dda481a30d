"""Names in a store: what a name may look like, and references such as ``name@3``, ``name@alias`` and ``name^``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from orca.core.arguments import wrong
from orca.errors import ArgumentError

LONGEST = 128
LATEST = "latest"
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?")
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_VERSION_LIKE = re.compile(r"v\d+", re.IGNORECASE)
_REFERENCE = re.compile(r"(?P<name>[^@^{}]*)(?:@(?P<ref>[^@^{}]*))?(?P<back>\^*)(?:\{(?P<options>[^{}]*)\})?")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
"""Names that are devices on Windows, where a folder of a store may be copied to."""
_RULE = (
    f"a name of at most {LONGEST} letters, digits, '_', '-' and '.', in parts separated by '/', that begin with a "
    "letter or digit"
)


@dataclass(frozen=True)
class Reference:
    """A name with the version that is meant: a number, an alias or None for the latest, and some versions before it."""

    name: str
    ref: int | str | None = None
    back: int = 0
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}{'' if self.ref is None else f'@{self.ref}'}{'^' * self.back}"


def check_name(argument: str, value: Any) -> str:
    """Return a name; names become folders, so nothing else than letters, digits and a few signs is accepted.

    >>> check_name("name", "flowers/mobile-net")
    'flowers/mobile-net'
    >>> check_name("name", "../x")
    Traceback (most recent call last):
    ...
    orca.errors.ArgumentError: name='../x': expected a name of at most 128 letters, digits, '_', '-' and '.', in \
parts separated by '/', that begin with a letter or digit.
    """
    if not isinstance(value, str) or len(value) > LONGEST:
        raise wrong(argument, value, _RULE)
    parts = value.split("/")
    if not all(part.isascii() and _PART.fullmatch(part) for part in parts):
        raise wrong(argument, value, _RULE)
    if any(part.isdecimal() for part in parts[1:]):
        raise ArgumentError(f"{argument}={value!r}: a part after '/' cannot be a number, which names a version.")
    if any(part.partition(".")[0].lower() in _DEVICES for part in parts):
        raise ArgumentError(f"{argument}={value!r}: a part is the name of a device on Windows. Choose another name.")
    return value


def check_alias(argument: str, value: Any) -> str:
    """Return the name of an alias, which cannot be confused with a version.

    >>> check_alias("alias", "production")
    'production'
    """
    if not isinstance(value, str) or not value.isascii() or not _ALIAS.fullmatch(value):
        raise wrong(argument, value, "a name that begins with a letter, such as 'production'")
    if value.lower() == LATEST or _VERSION_LIKE.fullmatch(value):
        raise ArgumentError(f"{argument}={value!r} is reserved: choose a name such as 'production'.")
    return value


def parse(argument: str, value: Any, options: bool = False) -> Reference:
    """Return what a text such as ``name@3`` refers to.

    >>> parse("name", "net@production^")
    Reference(name='net', ref='production', back=1, options={})
    >>> parse("name", "rows{a=b}", options=True).options
    {'a': 'b'}
    """
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) and len(value) <= 1000 else None
    if match is None or (match["options"] is not None and not options):
        raise wrong(argument, value, "a name, name@3, name@alias, name@latest or name^")
    name, ref = check_name(argument, match["name"]), match["ref"]
    number: int | str | None = None
    if ref is not None and ref.isascii() and ref.isdecimal() and 0 < len(ref) < 19:
        number = int(ref)
    elif ref is not None and ref != LATEST:
        number = check_alias(argument, ref)
    return Reference(name, number, len(match["back"]), _options(argument, value, match["options"]))


def _options(argument: str, value: str, text: str | None) -> dict[str, str]:
    options: dict[str, str] = {}
    for entry in text.split(",") if text else ():
        key, sign, word = (part.strip() for part in entry.partition("="))
        if not sign or not key.isidentifier() or key in options:
            raise wrong(argument, value, "options of the form name{a=b,c=d}")
        options[key] = word
    return options
