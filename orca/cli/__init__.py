"""The `orca` command."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from typing import Annotated

import typer

from orca import doctor
from orca.cli import datasets, models, tokens
from orca.cli.common import group, numbers, pixels, reported_errors, words
from orca.cli.serve import serve
from orca.errors import ArgumentError

app = group()
app.add_typer(models.app, name="models")
app.add_typer(datasets.app, name="datasets")
app.add_typer(tokens.app, name="token")
app.command("serve")(serve)


def _title() -> str:
    return f"orca {importlib.metadata.version('orca-estimator')}"


def _show_version(show: bool) -> None:
    if show:
        typer.echo(_title())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train and run standard models on one machine, Ray or Spark."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("doctor")
def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    require: Annotated[str, typer.Option(help="Names separated by commas; exit code 1 if one is not usable.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Check what is installed without importing it.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that one import may take.")] = 120.0,
) -> None:
    """Show which frameworks, runtimes and backends work here, and how to fix the ones that do not."""
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
    missing = doctor.missing(required, checks)
    for check in missing:
        typer.echo(f"required but not usable: {check.name}: {check.why}. Fix: {check.fix}", err=True)
    if missing:
        raise typer.Exit(1)


@app.command("predict")
def _predict(
    model: Annotated[str, typer.Argument(help="IR (.xml), ONNX, .keras, TorchScript, .pt2 or SavedModel.")],
    inputs: Annotated[str, typer.Argument(help="Csv, parquet, npy or image files: path, folder, glob or fsspec URL.")],
    output: Annotated[str, typer.Argument(help="File to write: .csv, .parquet or .npy, on a path or fsspec URL.")],
    batch_size: Annotated[int | None, typer.Option(min=1, help="Rows per batch.")] = None,
    device: Annotated[str, typer.Option(help="OpenVINO device, such as CPU, GPU or AUTO.")] = "CPU",
    hint: Annotated[str | None, typer.Option(help="Performance hint: throughput or latency.")] = None,
    columns: Annotated[str, typer.Option(help="Feature columns of a table, separated by commas.")] = "",
    output_cols: Annotated[str, typer.Option(help="Names of the outputs, separated by commas.")] = "",
    layout: Annotated[str | None, typer.Option(help="Layout of the data if not the model's, such as NHWC.")] = None,
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH of images; the default is the model's.")] = "",
    mean: Annotated[str, typer.Option(help="Number to subtract from the input, or one per channel.")] = "",
    scale: Annotated[str, typer.Option(help="Number to divide the input by, or one per channel.")] = "",
    progress: Annotated[bool | None, typer.Option(help="Show a progress bar; by default on terminals.")] = None,
) -> None:
    """Run a model on files and write its predictions."""
    from orca.estimator import Estimator
    from orca.runs.predict_files import Options, predict_files

    with reported_errors():
        settings = {
            "device": device,
            "performance_hint": hint,
            "mean": numbers("--mean", mean),
            "scale": numbers("--scale", scale),
        }
        config = {name: value for name, value in settings.items() if value is not None}
        options = Options(batch_size, layout, words(columns), words(output_cols), pixels(size), progress)
        summary = predict_files(
            lambda layout: Estimator.from_openvino(model_path=model, config=config, layout=layout),
            inputs,
            output,
            options,
        )
    rate = summary.rows / max(summary.seconds, 1e-9)
    typer.echo(f"{summary.rows:,} rows in {summary.seconds:.1f} s, {rate:,.0f} rows/s: {output}")


def main() -> None:
    """Run the command line."""
    app()
