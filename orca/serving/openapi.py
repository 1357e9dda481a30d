"""The OpenAPI document: assembled from the routes, with the names of the models that the caller may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orca.serving.routing import Route

Schema = dict[str, Any]

READ_ERRORS = (400, 401, 403, 404, 421, 500, 503)
INFERENCE_ERRORS = (*READ_ERRORS, 408, 413, 415, 504)
_TEXTS = {
    202: "Accepted: the result will be at the address in the header Location.",
    400: "The request does not fit the protocol or the model's signature.",
    401: "No valid token.",
    403: "The token may not use this model.",
    404: "Unknown model, version, alias, task or dataset.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body has another type, or is compressed.",
    421: "The Host header names another server.",
    500: "The model failed; the id in the text is in the log.",
    503: "Too many requests wait, or the store cannot be reached.",
    504: "The result did not arrive in time.",
}
_PARAMETERS: dict[str, Schema] = {
    "model": {"type": "string", "minLength": 1},
    "version": {"type": "integer", "minimum": 1, "maximum": 10**17},
    "label": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$"},
    "task": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "file": {"type": "string"},
}
_schemas: dict[str, Schema] = {}


def named_schema(name: str, schema: Schema) -> Schema:
    """Add a schema to the document and return a reference to it."""
    _schemas[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


ERROR = named_schema("Error", {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}})
MESSAGE = named_schema(
    "Message", {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
)


def operation(
    summary: str,
    tag: str,
    *,
    response: Schema | None = None,
    request: Schema | None = None,
    errors: Iterable[int] = READ_ERRORS,
    error: Schema = ERROR,
    details: str = "",
    query: Mapping[str, Schema] | None = None,
    accepted: Schema | None = None,
    binary: bool = False,
    kind: str = "application/json",
) -> dict[str, Any]:
    """Return the OpenAPI description of one verb of a route."""
    content: dict[str, Any] = {kind: {} if response is None else {"schema": response}}
    bodies: dict[str, Any] = {"application/json": {"schema": request}}
    if binary:
        content["application/octet-stream"] = {}
        bodies["application/octet-stream"] = {}
    replies: dict[str, Any] = {"200": {"description": "The result.", "content": content}}
    if accepted is not None:
        replies["202"] = {"description": _TEXTS[202], "content": {"application/json": {"schema": accepted}}}
    for status in sorted({*errors, 401, 421}):
        replies[str(status)] = {
            "description": _TEXTS[status],
            "content": {"application/json": {"schema": error}},
        }
    text: dict[str, Any] = {"summary": summary, "tags": [tag], "responses": replies}
    if details:
        text["description"] = details
    if request is not None:
        text["requestBody"] = {"required": True, "content": bodies}
    if query:
        text["parameters"] = [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
    return text


def document(routes: Iterable[Route], version: str, models: list[str], secured: bool) -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, Any] = {}
    for route in routes:
        if not route.operations:
            continue
        entry: dict[str, Any] = {verb.lower(): dict(text) for verb, text in route.operations.items()}
        names = [part.partition("}")[0] for part in route.path.split("{")[1:]]
        if names:
            entry["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": _parameter(name, models)} for name in names
            ]
        for verb in route.operations:
            entry[verb.lower()]["operationId"] = f"{verb.lower()}{route.path}"
            if route.is_open:
                entry[verb.lower()]["security"] = []
        paths[route.path] = entry
    result: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Orca model server",
            "version": version,
            "description": "Predictions of the models of a store. The server is read-only.",
        },
        "paths": paths,
        "components": {"schemas": _schemas},
    }
    if secured:
        result["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        result["security"] = [{"token": []}]
    return result


def _parameter(name: str, models: list[str]) -> Schema:
    if name == "model" and models:
        return {"type": "string", "examples": models, "enum": models}
    return _PARAMETERS[name]
