"""The commands `orca datasets …`: datasets of a store as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from orca.cli.common import AsJson, Database, StorePath, group, opened, reported_errors, table, words
from orca.errors import ArgumentError, DataError

app = group("List, show, add and remove datasets of a store.")
Name = Annotated[str, typer.Argument(help="Name of the dataset.", metavar="NAME")]


@app.command("list")
def _list(
    store: StorePath,
    pattern: Annotated[str, typer.Argument(help="Pattern of names.")] = "*",
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the datasets."""
    with reported_errors():
        datasets = opened(store, db).datasets
        facts = [datasets.metadata(name) for name in datasets.list(pattern)]
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    columns = ("name", "kind", "rows", "bytes", "modified")
    typer.echo(table([[str(entry[key])[:128] for key in columns] for entry in facts], columns))


@app.command("show")
def _show(store: StorePath, name: Name, db: Database = None) -> None:
    """Show all that is known of a dataset, as JSON."""
    with reported_errors():
        typer.echo(json.dumps(opened(store, db).datasets.metadata(name), indent=2))


@app.command("put")
def _put(
    store: StorePath,
    name: Name,
    file: Annotated[str, typer.Argument(help="File .csv, .parquet, .npy or .json.")],
    append: Annotated[bool, typer.Option("--append", help="Add the rows to the dataset.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the dataset.")] = False,
    db: Database = None,
) -> None:
    """Add a file as a dataset; the store is created if there is none."""
    with reported_errors():
        data = _read(Path(file))
        facts = opened(store, db, create=True).datasets.put(data, name, append=append, replace=replace)
    typer.echo(f"{facts['name']}: {facts['rows']} rows")


@app.command("get")
def _get(
    store: StorePath,
    name: Name,
    file: Annotated[str, typer.Argument(help="File to write: .csv, .parquet, .npy or .json.")],
    columns: Annotated[str, typer.Option(help="Columns of a table, separated by commas.")] = "",
    db: Database = None,
) -> None:
    """Write a dataset to a file. Virtual datasets, which are programs, are not run."""
    with reported_errors():
        target = Path(file)
        write = _writer(target)
        datasets = opened(store, db).datasets
        if datasets.metadata(name)["kind"] == "virtual":
            raise ArgumentError(f"NAME {name}: a virtual dataset is a program; get it in Python.")
        chosen = words(columns)
        data = datasets.get(name, columns=list(chosen) if chosen else None)
        try:
            write(data)
        except (AttributeError, TypeError, ValueError, OSError) as error:
            raise DataError(f"{target} cannot be written: {error}") from error


@app.command("drop")
def _drop(store: StorePath, name: Name, db: Database = None) -> None:
    """Remove a dataset."""
    with reported_errors():
        opened(store, db).datasets.drop(name)


def _read(path: Path) -> Any:
    import numpy as np
    import pandas as pd

    readers: dict[str, Callable[[Path], Any]] = {
        ".csv": pd.read_csv,
        ".parquet": pd.read_parquet,
        ".npy": lambda file: np.load(file, allow_pickle=False),
        ".json": lambda file: json.loads(file.read_text()),
    }
    read = readers.get(path.suffix.lower())
    if read is None:
        raise ArgumentError(f"FILE {path}: expected one that ends in {', '.join(readers)}.")
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _writer(path: Path) -> Callable[[Any], None]:
    import numpy as np

    def as_frame(data: Any) -> Any:
        data = data.to_pandas() if hasattr(data, "to_pandas") else data
        if not hasattr(data, "to_parquet"):
            raise TypeError("the dataset is not a table")
        return data

    writers: dict[str, Callable[[Any], None]] = {
        ".csv": lambda data: as_frame(data).to_csv(path, index=False),
        ".parquet": lambda data: as_frame(data).to_parquet(path),
        ".npy": lambda data: np.save(path, np.asarray(data), allow_pickle=False),
        ".json": lambda data: _write_json(path, data),
    }
    if path.suffix.lower() not in writers:
        raise ArgumentError(f"FILE {path}: expected one that ends in {', '.join(writers)}.")
    return writers[path.suffix.lower()]


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data))
