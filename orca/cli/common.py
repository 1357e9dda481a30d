"""What the commands share: their options, their errors, and how they read a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from orca.errors import ArgumentError, OrcaError

if TYPE_CHECKING:
    from orca.store import Store

StorePath = Annotated[str, typer.Argument(help="Folder or fsspec URL of the store.", metavar="STORE")]
Database = Annotated[
    str | None, typer.Option("--db", envvar="ORCA_DB", help="URL of the database, if it is not in the folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def group(help: str | None = None) -> typer.Typer:
    """Return a group of commands."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=help, no_args_is_help=False
    )


@contextmanager
def reported_errors() -> Iterator[None]:
    """Print an error of Orca's in one line, and exit with 2 for a wrong argument and 1 for anything else."""
    try:
        yield
    except OrcaError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ArgumentError) else 1) from None


def opened(path: str, db: str | None, create: bool = False) -> Store:
    """Open a store; a command that only reads does not create one."""
    from orca.store import Store

    return Store(path, db, create=create)


def table(rows: Sequence[Sequence[object]], titles: Sequence[str]) -> str:
    """Format rows as columns.

    >>> print(table([("a", 1)], ("name", "rows")))
    name  rows
    a     1
    """
    cells = [[str(cell) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(titles))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def words(text: str) -> tuple[str, ...] | None:
    """Return the words of an option, separated by commas; None if there are none."""
    return tuple(word.strip() for word in text.split(",") if word.strip()) or None


def numbers(option: str, text: str) -> tuple[float, ...] | None:
    """Return the numbers of an option, separated by commas; None if there are none."""
    try:
        return tuple(float(word) for word in words(text) or ()) or None
    except ValueError:
        raise ArgumentError(f"{option} {text}: expected numbers separated by commas.") from None


def pixels(text: str) -> tuple[int, int] | None:
    """Return the height and width that ``--size`` names."""
    if not text:
        return None
    height, _, width = text.lower().partition("x")
    if not height.isdecimal() or not (width or height).isdecimal():
        raise ArgumentError(f"--size {text}: expected HEIGHTxWIDTH, such as 224x224.")
    return int(height), int(width or height)
