"""The command ``orca serve``."""

from __future__ import annotations

import importlib.util
import logging
from typing import Annotated

import typer

from orca.cli.common import Database, StorePath, reported_errors
from orca.errors import ArgumentError, MissingPackageError
from orca.serving.settings import PACKAGES, Settings
from orca.serving.sockets import address_of, open_socket

_HOMES = ("local", "ray")


def serve(
    store: StorePath,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="NAME, NAME@ALIAS or NAME@3; may be repeated. Default: all.")
    ] = None,
    db: Database = None,
    host: Annotated[str, typer.Option(help="Address; any other than a loopback address needs tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.")] = 8000,
    workers: Annotated[int, typer.Option(help="Server processes on this machine.")] = 1,
    threads: Annotated[int, typer.Option(help="Inference threads of each process.")] = 1,
    max_body: Annotated[str, typer.Option(help="Largest body of a request.")] = "16m",
    timeout: Annotated[float, typer.Option(help="Seconds until a request is answered with 504.")] = 30.0,
    queue: Annotated[int, typer.Option(help="Requests of a model that may wait in a process.")] = 256,
    join: Annotated[int, typer.Option(help="Most rows of waiting requests that are computed at once.")] = 64,
    poll: Annotated[float, typer.Option(help="Seconds between two looks at the store for changes.")] = 1.0,
    max_pixels: Annotated[int, typer.Option(help="Largest image.")] = 2**24,
    auth: Annotated[bool | None, typer.Option(help="Whether requests need a token (orca token add).")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A further name of this server; may be repeated.")
    ] = None,
    allow_virtual: Annotated[
        list[str] | None, typer.Option("--allow-virtual", help="A virtual dataset that ?datax= may run.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Folder for results of asynchronous requests.")] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request.")] = False,
    on: Annotated[str, typer.Option(help="Where to run: local or ray.")] = "local",
    replicas: Annotated[int | None, typer.Option(help="Replicas on Ray Serve.")] = None,
) -> None:
    """Serve the models of a store over HTTP: REST, Open Inference Protocol, TF Serving, metrics and a page."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    with reported_errors():
        if on not in _HOMES:
            raise ArgumentError(f"--on {on}: expected local or ray.")
        if replicas is not None and on == "local":
            raise ArgumentError("--replicas is for --on ray; use --workers on this machine.")
        settings = Settings(
            store,
            db=db,
            models=tuple(model or ()),
            host=host,
            port=port,
            workers=workers,
            threads=threads,
            max_body=max_body,  # type: ignore[arg-type]
            timeout=timeout,
            queue=queue,
            join=join,
            poll=poll,
            auth=auth,
            hosts=tuple(allow_host or ()),
            max_pixels=max_pixels,
            allow_virtual=tuple(allow_virtual or ()),
            tasks=tasks,
            access_log=access_log,
        )
        _start(settings, on, replicas or 1)


def _start(settings: Settings, on: str, replicas: int) -> None:
    for package in PACKAGES:
        # Not imported: prometheus_client has to find its settings when it is.
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"orca serve needs {package}: pip install 'orca-estimator[serve,store,openvino]'."
            )
    if on == "ray":
        from orca.serving.ray import run_on_ray

        run_on_ray(settings, replicas, lambda url: _announce(url, settings))
        return
    run_here(settings)


def run_here(settings: Settings) -> None:
    """Serve in this process, or with a supervisor and several processes."""
    listener = open_socket(settings.host, settings.port)

    def started() -> None:
        _announce(address_of(listener), settings)

    if settings.workers > 1:
        from orca.serving.supervisor import Supervisor

        Supervisor(settings, listener).run(started)
    else:
        from orca.serving.process import run

        run(settings, listener, started)


def _announce(url: str, settings: Settings) -> None:
    models = ", ".join(settings.models) or "all models"
    typer.echo(f"Serving {models} of {settings.store} on {url} (documentation: {url}/docs)")
