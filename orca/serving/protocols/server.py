"""What concerns the server as a whole: health, the list of models, metrics and the OpenAPI document."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from orca.serving import metrics
from orca.serving.access import may_see
from orca.serving.images import image_axes
from orca.serving.messages import Reply, Request, json_reply
from orca.serving.openapi import document, named_schema, operation
from orca.serving.routing import Route

VERSION = importlib.metadata.version("orca-estimator")
EXTENSIONS = ["binary_tensor_data"]


async def about(request: Request) -> Reply:
    """Describe the server."""
    return json_reply({"name": "orca", "version": VERSION, "extensions": EXTENSIONS})


async def live(request: Request) -> Reply:
    """Say that the process answers."""
    return json_reply({"live": True})


async def ready(request: Request) -> Reply:
    """Say whether all models are served, and whether the store can be reached.

    An unreachable store alone does not end the readiness: the models in memory are served, and a load balancer that
    took the server away would turn that into a failure of predictions.
    """
    catalog = request.app.catalog
    missing = [reference for reference in catalog.problems if reference not in catalog.ready]
    report = {
        "ready": not missing,
        "store": "reachable" if catalog.reachable else "unreachable",
        "problems": len(catalog.problems),
    }
    return json_reply(report, 503 if missing else 200)


async def models(request: Request) -> Reply:
    """List the models that the caller may use."""
    catalog = request.app.catalog
    entries: list[dict[str, Any]] = []
    for name in catalog.names:
        served = catalog.current(name)
        if served is None or not may_see(request.token, name):
            continue
        description = catalog.descriptions[name]
        entries.append(
            {
                "name": name,
                "version": served.version.number,
                "versions": sorted(description["versions"]),
                "aliases": description["aliases"],
                "images": [port.name for port in served.inputs if image_axes(port)],
            }
        )
    return json_reply({"models": entries})


async def read_metrics(request: Request) -> Reply:
    """Return what Prometheus collects."""
    return metrics.exposition()


async def openapi(request: Request) -> Reply:
    """Return the OpenAPI document."""
    app = request.app
    names = [name for name in app.catalog.names if may_see(request.token, name)]
    return json_reply(document(app.router.routes, VERSION, names, app.settings.needs_token))


def _object(**properties: str) -> dict[str, Any]:
    kinds = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "required": list(properties), "properties": kinds}


_TAG = "Server"
_READY = named_schema("Ready", _object(ready="boolean", store="string", problems="integer"))
_READY_OPERATION = operation("Ask whether the server is ready", _TAG, response=_READY, errors=(421, 500))
_READY_OPERATION["responses"]["503"] = {
    "description": "A model is not served.",
    "content": {"application/json": {"schema": _READY}},
}

ROUTES = (
    Route(
        "/v2",
        {"GET": about},
        {
            "GET": operation(
                "Describe the server",
                _TAG,
                response=named_schema("Server", _object(name="string", version="string", extensions="array")),
            )
        },
        is_open=True,
    ),
    Route(
        "/v2/health/live",
        {"GET": live},
        {
            "GET": operation(
                "Ask whether the server lives", _TAG, response=named_schema("Live", _object(live="boolean"))
            )
        },
        is_open=True,
    ),
    Route("/v2/health/ready", {"GET": ready}, {"GET": _READY_OPERATION}, is_open=True),
    Route(
        "/v2/models",
        {"GET": models},
        {"GET": operation("List the models", _TAG, response=named_schema("Models", _object(models="array")))},
    ),
    Route(
        "/metrics",
        {"GET": read_metrics},
        {"GET": operation("Read the metrics for Prometheus", _TAG, kind="text/plain")},
    ),
    Route("/openapi.json", {"GET": openapi}, {"GET": operation("Read this document", _TAG)}),
)
