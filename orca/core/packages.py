"""The record with which a framework or runtime declares a package that `orca doctor` checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Inspect: TypeAlias = Callable[[bool], tuple[str, str]]
"""``inspect(quick)`` returns a note for the table, and a fix if something is missing."""


@dataclass(frozen=True)
class Package:
    """A package to check: what to import, which distributions provide it, and how to install it.

    Other projects declare theirs as a sequence of these in the entry-point group ``orca.packages``. The module that
    holds it is imported by `orca doctor` itself, so it must not import the package.

    Args:
        kind: "framework", "sync" or "runtime".
        name: Name in the table and for ``--require``.
        module: Module that must be importable.
        fix: Command that installs the package.
        distributions: Distributions that provide it, the most common first.
        first: Module to import before `module`.
        built: Glob pattern of a compiled file, below the top-level package, without which `module` is unusable.
        order: Position among the packages of its kind.
        inspect: Additional check.
    """

    kind: str
    name: str
    module: str
    fix: str
    distributions: tuple[str, ...]
    first: str = ""
    built: str = ""
    order: int = 100
    inspect: Inspect | None = None


def from_extra(
    kind: str,
    name: str,
    *distributions: str,
    module: str = "",
    extra: str = "",
    first: str = "",
    order: int = 100,
    inspect: Inspect | None = None,
) -> Package:
    """Declare a package that one of Orca's extras installs; names that are left out are those of the package.

    >>> from_extra("runtime", "spark", "pyspark", module="pyspark").fix
    "pip install 'orca-estimator[spark]'"
    """
    fix = f"pip install 'orca-estimator[{extra or name}]'"
    return Package(kind, name, module or name, fix, distributions or (name,), first=first, order=order, inspect=inspect)
