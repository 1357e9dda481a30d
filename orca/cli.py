"""The `orca` command."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from typing import Annotated

import typer

from orca import doctor
from orca.errors import ArgumentError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _title() -> str:
    return f"orca {importlib.metadata.version('orca-estimator')}"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(_title())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train and run standard models on one machine, on Ray or on Spark."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("doctor")
def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    require: Annotated[str, typer.Option(help="Names, with commas; exit code 1 if one of them is not usable.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Look at what is installed; import nothing.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that one import may take.")] = 120.0,
) -> None:
    """Show which frameworks, runtimes and backends work here, and how to mend those that do not."""
    try:
        required = doctor.parse_required(require)
    except ArgumentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    checks = doctor.diagnose(quick=quick, timeout=timeout)
    if as_json:
        typer.echo(json.dumps(doctor.report(checks, quick), indent=2))
    else:
        typer.echo(f"{_title()}, Python {platform.python_version()}, {platform.platform()}\n")
        typer.echo(doctor.table(checks))
    lacking = doctor.missing(required, checks)
    for check in lacking:
        typer.echo(f"required but not usable: {check.name}: {check.why}. Fix: {check.fix}", err=True)
    if lacking:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
