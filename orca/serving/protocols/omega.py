"""The REST routes of omega|ml: predictions from columns of rows, metadata, and asynchronous requests."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np

from orca.serving import checks, datasets
from orca.serving.catalog import Served
from orca.serving.messages import JSON, HttpError, Reply, Request, json_reply, parse_json
from orca.serving.openapi import INFERENCE_ERRORS, MESSAGE, READ_ERRORS, named_schema, operation
from orca.serving.routing import Route
from orca.serving.tasks import PENDING
from orca.store.values import Port

Array = np.ndarray[Any, Any]
_PROTOCOL = "omega"
_YES = ("1", "true", "yes")


async def predict(request: Request) -> Reply:
    """Predict rows of the body, or of a stored dataset; with ``?async=1`` in the background."""
    request.check_type(JSON)
    served = await request.app.served(request)
    arrays = await _arrays(request, served)
    work = _result(request, served, arrays)
    flag = request.query.get("async") or request.headers.get(b"async", b"").decode("latin-1")
    if flag.lower() not in _YES:
        return json_reply(await work, headers=[(b"orca-model-version", served.number.encode())])
    try:
        task = request.app.tasks.start(served.version.name, work)
    except HttpError:
        work.close()
        raise
    address = f"/api/v1/task/{task}/result"
    return json_reply(
        {"task_id": task, "status": PENDING, "resource_uri": address}, 202, [(b"location", address.encode())]
    )


async def _result(request: Request, served: Served, arrays: list[Array]) -> dict[str, Any]:
    outputs = await served.compute(arrays)
    result: Any = outputs[0]
    if len(outputs) > 1:
        result = {port.name: output for port, output in zip(served.outputs, outputs, strict=True)}
    return {"model": request.parameters["model"], "result": result, "resource_uri": request.path}


async def _arrays(request: Request, served: Served) -> list[Array]:
    name = request.query.get("datax")
    body = await request.body()
    if name is not None:
        if body.strip():
            raise HttpError(400, "The request has both a body and ?datax=: send one of them.")
        return await datasets.read(request.app, name, served.inputs)
    if not body:
        raise HttpError(400, "The request has neither a body nor ?datax=<dataset>.")
    message = parse_json(body)
    return from_rows(message, served.inputs)


def from_rows(message: dict[str, Any], ports: tuple[Port, ...]) -> list[Array]:
    """Return one array per input from rows of columns.

    With ``shape`` there is exactly one column, and each row's list is reshaped to it. Otherwise several columns of
    numbers are the features of one input; a model with several inputs takes a column for each, by name.
    """
    rows = message.get("data")
    if type(rows) is not list or not rows or not all(type(row) is dict for row in rows):
        key = "data" if "data" in message else "'data'"
        raise HttpError(400, f"The request has no {key} with at least one object of columns per row.")
    columns = message.get("columns")
    if columns is None:
        columns = list(rows[0])
    if type(columns) is not list or not columns or not all(type(name) is str for name in columns):
        raise HttpError(400, "'columns' has to be a list of names.")
    shape = message.get("shape")
    if shape is not None:
        return [_reshaped(rows, columns, shape, ports)]
    if len(ports) > 1:
        names = [port.name for port in ports]
        missing = [name for name in names if name not in columns]
        if missing:
            listed = ", ".join(columns[:20])
            raise HttpError(400, f"The model needs the columns {', '.join(names)}; the request has {listed}.")
        return [_column(rows, port) for port in ports]
    return [_features(rows, columns, ports[0])]


def _values(rows: list[dict[str, Any]], column: str) -> list[Any]:
    try:
        return [row[column] for row in rows]
    except KeyError:
        number = next(number for number, row in enumerate(rows) if column not in row)
        listed = ", ".join(list(rows[number])[:20])
        raise HttpError(400, f"Row {number} has no column {column!r}. Its columns: {listed}.") from None


def _reshaped(rows: list[dict[str, Any]], columns: list[str], shape: Any, ports: tuple[Port, ...]) -> Array:
    if len(columns) != 1 or len(ports) != 1:
        count = f"{len(columns)} columns" if len(columns) != 1 else f"a model of {len(ports)} inputs"
        raise HttpError(400, f"'shape' needs exactly one column and one input; the request has {count}.")
    (port,) = ports
    sides = checks.parse_shape("shape", shape)
    checks.check_shape(port, [len(rows), *sides])
    size = math.prod(sides)
    lists = [checks.flatten(columns[0], value)[0] for value in _values(rows, columns[0])]
    for number, values in enumerate(lists):
        if len(values) != size:
            raise HttpError(400, f"Row {number} has {len(values)} values; the shape {checks.shown(sides)} has {size}.")
    values = lists[0] if len(lists) == 1 else list(itertools.chain.from_iterable(lists))
    return checks.to_array(port, values, [len(rows), *sides])


def _features(rows: list[dict[str, Any]], columns: list[str], port: Port) -> Array:
    if len(columns) == 1:
        return _column(rows, port, columns[0])
    lists = [_values(rows, column) for column in columns]
    return checks.nested_array(port, [list(row) for row in zip(*lists, strict=True)])


def _column(rows: list[dict[str, Any]], port: Port, column: str | None = None) -> Array:
    values = _values(rows, port.name if column is None else column)
    if len(port.shape) == 2 and values and type(values[0]) is not list:
        values = [[value] for value in values]  # one number per row
    return checks.nested_array(port, values)


async def metadata(request: Request) -> Reply:
    """Describe a model."""
    version = (await request.app.served(request)).version
    created = version.created.isoformat()
    result = {
        "name": version.name,
        "kind": version.kind,
        "created": created,
        "modified": created,
        "bucket": "store",
        "version": version.number,
        "aliases": list(version.aliases),
    }
    return json_reply({"model": request.parameters["model"], "result": result})


async def ping(request: Request) -> Reply:
    """Answer with the time."""
    return json_reply({"ping": time.time()})


async def task_status(request: Request) -> Reply:
    """Return the status of a task."""
    return _task(request, False)


async def task_result(request: Request) -> Reply:
    """Return the result of a task, or 202 while it runs."""
    return _task(request, True)


def _task(request: Request, whole: bool) -> Reply:
    task = request.parameters["task"]
    state = request.app.tasks.read(task)
    if request.token is not None and not request.token.allows(state["model"]):
        raise HttpError(403, "The token may not use this model.")
    response = state["response"] if whole else None
    status = 202 if whole and state["status"] == PENDING else 200
    return json_reply({"task_id": task, "status": state["status"], "response": response}, status)


_ROWS = named_schema(
    "Rows",
    {
        "type": "object",
        "required": ["data"],
        "properties": {
            "columns": {"type": "array", "items": {"type": "string"}},
            "data": {"type": "array", "minItems": 1, "items": {"type": "object"}},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        },
        "examples": [{"columns": ["x"], "data": [{"x": [0.1, 0.2]}], "shape": [2]}],
    },
)
_PREDICTION = named_schema(
    "Prediction",
    {
        "type": "object",
        "required": ["model", "result", "resource_uri"],
        "properties": {"model": {"type": "string"}, "result": {}, "resource_uri": {"type": "string"}},
    },
)
_TASK = named_schema(
    "Task",
    {
        "type": "object",
        "required": ["task_id", "status"],
        "properties": {
            "task_id": {"type": "string"},
            "status": {"enum": ["PENDING", "SUCCESS", "FAILURE"]},
            "response": {},
            "resource_uri": {"type": "string"},
        },
    },
)
_DESCRIPTION = named_schema(
    "Description",
    {
        "type": "object",
        "required": ["model", "result"],
        "properties": {"model": {"type": "string"}, "result": {"type": "object"}},
    },
)
_PING = named_schema("Ping", {"type": "object", "required": ["ping"], "properties": {"ping": {"type": "number"}}})
_TAG = "omega|ml"
_PUT = operation(
    "Predict rows",
    _TAG,
    response=_PREDICTION,
    request=_ROWS,
    errors=INFERENCE_ERRORS,
    error=MESSAGE,
    accepted=_TASK,
    query={"async": {"enum": ["0", "1"]}},
    details="With `shape`, each row's list in the one column is reshaped. `?async=1` answers 202 with a task.",
)
_GET = operation(
    "Predict a stored dataset",
    _TAG,
    response=_PREDICTION,
    errors=INFERENCE_ERRORS,
    error=MESSAGE,
    accepted=_TASK,
    query={"datax": {"type": "string"}, "async": {"enum": ["0", "1"]}},
)
_READ_TASK = operation("Read a task", _TAG, response=_TASK, errors=READ_ERRORS, error=MESSAGE, accepted=_TASK)
_DESCRIBE = operation("Describe a model", _TAG, response=_DESCRIPTION, error=MESSAGE)

ROUTES = (
    Route(
        "/api/v1/model/{model}/predict",
        {"PUT": predict, "GET": predict},
        {"PUT": _PUT, "GET": _GET},
        protocol=_PROTOCOL,
    ),
    Route("/api/v1/model/{model}/", {"GET": metadata}, protocol=_PROTOCOL),
    Route("/api/v1/model/{model}", {"GET": metadata}, {"GET": _DESCRIBE}, protocol=_PROTOCOL),
    Route("/api/v1/task/{task}/status", {"GET": task_status}, {"GET": _READ_TASK}, protocol=_PROTOCOL),
    Route("/api/v1/task/{task}/result", {"GET": task_result}, {"GET": _READ_TASK}, protocol=_PROTOCOL),
    Route(
        "/api/v1/ping",
        {"GET": ping},
        {"GET": operation("Ping", _TAG, response=_PING, error=MESSAGE)},
        is_open=True,
        protocol=_PROTOCOL,
    ),
)
