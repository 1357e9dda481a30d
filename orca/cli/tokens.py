"""The commands `orca token …`: tokens for the server of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from orca.cli.common import Database, StorePath, group, opened, reported_errors, table

app = group("Add, list and remove tokens for the server.")
Label = Annotated[str, typer.Argument(help="Label of the token.", metavar="LABEL")]


@app.command("add")
def _add(
    store: StorePath,
    label: Label,
    pattern: Annotated[str, typer.Option(help="Models that it may use, such as 'flowers/*'.")] = "*",
    days: Annotated[float | None, typer.Option(help="Days until it expires.")] = None,
    db: Database = None,
) -> None:
    """Create a token and print it. It is not shown again: the store keeps only its hash."""
    with reported_errors():
        typer.echo(opened(store, db).tokens.add(label, pattern=pattern, days=days))


@app.command("list")
def _list(store: StorePath, db: Database = None) -> None:
    """List the tokens; not the secrets, which nobody knows."""
    with reported_errors():
        tokens = opened(store, db).tokens.list()
    rows = [
        (t.label, t.id, t.pattern, f"{t.created:%Y-%m-%d}", "" if t.expires is None else f"{t.expires:%Y-%m-%d}")
        for t in tokens
    ]
    typer.echo(table(rows, ("label", "id", "pattern", "created", "expires")))


@app.command("drop")
def _drop(store: StorePath, label: Annotated[str, typer.Argument(help="Label or id.")], db: Database = None) -> None:
    """Remove a token."""
    with reported_errors():
        count = opened(store, db).tokens.drop(label)
    typer.echo(f"{count} removed")
