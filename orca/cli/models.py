"""The commands `orca models …`: versions and aliases of the models of a store."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from orca.cli.common import AsJson, Database, StorePath, group, opened, reported_errors, table

app = group("List, show, add and remove models of a store.")
Name = Annotated[str, typer.Argument(help="Name, name@3, name@alias or name^.", metavar="NAME")]


@app.command("list")
def _list(
    store: StorePath,
    pattern: Annotated[str, typer.Argument(help="Pattern of names.")] = "*",
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the models with their latest version and their aliases."""
    with reported_errors():
        models = opened(store, db).models
        entries = [(models.resolve(name), models.aliases(name)) for name in models.list(pattern)]
    if as_json:
        found = [{"name": v.name, "version": v.number, "kind": v.kind, "aliases": names} for v, names in entries]
        typer.echo(json.dumps(found, indent=2))
        return
    rows = [
        (v.name, v.number, v.kind, f"{v.created:%Y-%m-%d %H:%M}", ", ".join(f"{a}={n}" for a, n in names.items()))
        for v, names in entries
    ]
    typer.echo(table(rows, ("name", "latest", "kind", "created", "aliases")))


@app.command("show")
def _show(store: StorePath, name: Name, db: Database = None) -> None:
    """Show all that is known of a version, and the numbers of all versions, as JSON."""
    with reported_errors():
        models = opened(store, db).models
        facts = models.metadata(name)
        numbers = [version.number for version in models.versions(facts["name"])]
    typer.echo(json.dumps({**facts, "versions": numbers}, indent=2))


@app.command("put")
def _put(
    store: StorePath,
    name: Annotated[str, typer.Argument(help="Name of the model.", metavar="NAME")],
    file: Annotated[str, typer.Argument(help="IR (.xml), ONNX, .keras, TorchScript, .pt2 or SavedModel.")],
    tag: Annotated[list[str] | None, typer.Option(help="Alias that moves to the new version; may be repeated.")] = None,
    example: Annotated[str, typer.Option(help="File .npy with a few rows of input.")] = "",
    attribute: Annotated[list[str] | None, typer.Option(help="KEY=VALUE to keep; may be repeated.")] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help="Let a .keras file run its code.")] = False,
    db: Database = None,
) -> None:
    """Add a model file as the next version of a name; the store is created if there is none."""
    with reported_errors():
        attributes = dict(_pair(entry) for entry in attribute or ())
        version = opened(store, db, create=True).models.put(
            file, name, example=_rows(example), tag=tag or None, attributes=attributes, trusted=trusted
        )
    typer.echo(str(version))


def _rows(path: str) -> Any:
    import numpy as np

    from orca.errors import ArgumentError

    if not path:
        return None
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--example {path}: expected a .npy file with numbers ({error}).") from error


def _pair(entry: str) -> tuple[str, str]:
    from orca.errors import ArgumentError

    key, sign, value = entry.partition("=")
    if not sign or not key:
        raise ArgumentError(f"--attribute {entry}: expected KEY=VALUE.")
    return key, value


@app.command("get")
def _get(
    store: StorePath,
    name: Name,
    folder: Annotated[str, typer.Argument(help="New folder for the files.")],
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Copy programs (SavedModel, TorchScript, .pt2) too.")
    ] = False,
    db: Database = None,
) -> None:
    """Copy the verified files of a version to a folder."""
    with reported_errors():
        names = opened(store, db).models.export(name, folder, trusted=trusted)
    typer.echo("\n".join(names))


@app.command("alias")
def _alias(
    store: StorePath,
    name: Name,
    alias: Annotated[str, typer.Argument(help="Alias, such as production.")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
    db: Database = None,
) -> None:
    """Let an alias point to a version, or remove it."""
    with reported_errors():
        models = opened(store, db).models
        if remove:
            models.unalias(name, alias)
        else:
            typer.echo(f"{alias}: {models.alias(name, alias)}")


@app.command("drop")
def _drop(
    store: StorePath,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also if aliases point to it.")] = False,
    db: Database = None,
) -> None:
    """Remove a version (name@3) or all versions of a name."""
    with reported_errors():
        dropped = opened(store, db).models.drop(name, force=force)
    typer.echo("\n".join(str(version) for version in dropped))


@app.command("verify")
def _verify(store: StorePath, db: Database = None) -> None:
    """Compare all files of the store with their checksums; exit code 1 if something is wrong."""
    with reported_errors():
        problems = opened(store, db).verify()
    typer.echo("\n".join(problems) or "All files are as they were stored.")
    if problems:
        raise typer.Exit(1)


@app.command("sweep")
def _sweep(store: StorePath, db: Database = None) -> None:
    """Remove files that killed programs have left behind."""
    with reported_errors():
        removed = opened(store, db).sweep()
    typer.echo("\n".join(removed) or "Nothing to remove.")
