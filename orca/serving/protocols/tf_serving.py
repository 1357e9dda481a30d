"""The REST protocol of TensorFlow Serving: ``:predict`` with rows (`instances`) or columns (`inputs`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from orca.serving import checks, images
from orca.serving.catalog import Served
from orca.serving.messages import JSON, HttpError, Reply, Request, json_reply, parse_json
from orca.serving.openapi import INFERENCE_ERRORS, named_schema, operation
from orca.serving.routing import Route
from orca.store.values import Port

Array = np.ndarray[Any, Any]
_PROTOCOL = "tf-serving"
_TF_TYPES = {
    "bool": "DT_BOOL",
    "float16": "DT_HALF",
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
    **{f"{sign}int{bits}": f"DT_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


async def predict(request: Request) -> Reply:
    """Compute the outputs for rows or columns."""
    request.check_type(JSON)
    served = await request.app.served(request)
    message = parse_json(await request.body())
    if ("instances" in message) == ("inputs" in message):
        raise HttpError(400, "The request needs either 'instances', one entry per row, or 'inputs', by column.")
    by_row = "instances" in message
    data = message["instances" if by_row else "inputs"]
    most_pixels = request.app.settings.max_pixels
    if _has_images(data):
        arrays = await request.app.decode(_arrays, data, by_row, served.inputs, most_pixels)
    else:
        arrays = _arrays(data, by_row, served.inputs, most_pixels)
    outputs = await served.compute(arrays)
    headers = [(b"orca-model-version", served.number.encode())]
    if by_row:
        return json_reply({"predictions": _rows(served, outputs)}, headers=headers)
    columns: Any = outputs[0]
    if len(outputs) > 1:
        columns = {port.name: output for port, output in zip(served.outputs, outputs, strict=True)}
    return json_reply({"outputs": columns}, headers=headers)


def _arrays(data: Any, by_row: bool, ports: tuple[Port, ...], most_pixels: int) -> list[Array]:
    if by_row:
        if type(data) is not list or not data:
            raise HttpError(400, "'instances' has to be a list with at least one row.")
        return [_array(port, _column(data, port, len(ports)), most_pixels) for port in ports]
    if type(data) is dict and not (len(ports) == 1 and set(data) == {"b64"}):
        missing = [port.name for port in ports if port.name not in data]
        if missing:
            raise HttpError(400, f"'inputs' has no {missing[0]!r}. Inputs: {', '.join(port.name for port in ports)}.")
        return [_array(port, data[port.name], most_pixels) for port in ports]
    if len(ports) != 1:
        raise HttpError(400, f"'inputs' has to be an object with {', '.join(port.name for port in ports)}.")
    return [_array(ports[0], data, most_pixels)]


def _column(rows: list[Any], port: Port, inputs: int) -> list[Any]:
    """Return one input's values: rows are objects by input name, or for one input the values themselves."""
    named = [type(row) is dict and port.name in row for row in rows]
    if all(named):
        return [row[port.name] for row in rows]
    if inputs > 1 or any(named) or any(type(row) is dict and set(row) != {"b64"} for row in rows):
        raise HttpError(400, f"Row {named.index(False)} of 'instances' has no {port.name!r}.")
    return rows


def _has_images(data: Any) -> bool:
    """Whether some value is {"b64": …}; such values are near the top, so the numbers are not visited."""
    for _ in range(3):
        if type(data) is dict:
            if "b64" in data:
                return True
            data = next(iter(data.values()), None)
        elif type(data) is list:
            data = data[0] if data else None
    return type(data) is dict and "b64" in data


def _array(port: Port, values: Any, most_pixels: int) -> Array:
    rows = values if type(values) is list else [values]
    if rows and all(type(row) is dict for row in rows):
        encoded = [images.from_base64(port, row.get("b64")) for row in rows]
        array = images.decode_images(port, encoded, most_pixels)
        checks.check_shape(port, array.shape)
        return array
    return checks.nested_array(port, values)


def _rows(served: Served, outputs: list[Array]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    if len({len(output) if output.ndim else -1 for output in outputs}) != 1 or not outputs[0].ndim:
        raise HttpError(400, "The outputs of this model have no common rows: send 'inputs' in place of 'instances'.")
    names = [port.name for port in served.outputs]
    return [dict(zip(names, row, strict=True)) for row in zip(*outputs, strict=True)]


async def status(request: Request) -> Reply:
    """Return the state of a model."""
    served = await request.app.served(request)
    state = {"version": served.number, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    return json_reply({"model_version_status": [state]})


async def metadata(request: Request) -> Reply:
    """Return the signature of a model."""
    served = await request.app.served(request)
    signature = {
        "inputs": {port.name: _described(port) for port in served.inputs},
        "outputs": {port.name: _described(port) for port in served.outputs},
        "method_name": "tensorflow/serving/predict",
    }
    specification = {"name": request.parameters["model"], "signature_name": "", "version": served.number}
    return json_reply(
        {
            "model_spec": specification,
            "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
        }
    )


def _described(port: Port) -> dict[str, Any]:
    sides = [{"size": str(side), "name": ""} for side in port.shape]
    shape = {"dim": sides, "unknown_rank": False}
    return {"dtype": _TF_TYPES[str(np.dtype(port.dtype))], "tensor_shape": shape, "name": port.name}


_REQUEST = named_schema(
    "PredictRequest",
    {
        "type": "object",
        "properties": {
            "signature_name": {"type": "string"},
            "instances": {"type": "array", "description": "One entry per row."},
            "inputs": {"description": "By column."},
        },
        "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
        "examples": [{"instances": [[0.5, 1.5]]}],
    },
)
_RESPONSE = named_schema(
    "PredictResponse",
    {
        "type": "object",
        "properties": {"predictions": {"type": "array"}, "outputs": {}},
        "oneOf": [{"required": ["predictions"]}, {"required": ["outputs"]}],
    },
)
_STATUS = named_schema(
    "ModelStatus",
    {
        "type": "object",
        "required": ["model_version_status"],
        "properties": {"model_version_status": {"type": "array", "items": {"type": "object"}}},
    },
)
_SIGNATURE = named_schema(
    "ServingMetadata",
    {
        "type": "object",
        "required": ["model_spec", "metadata"],
        "properties": {"model_spec": {"type": "object"}, "metadata": {"type": "object"}},
    },
)
_TAG = "TensorFlow Serving"
_PREDICT = operation(
    "Predict", _TAG, response=_RESPONSE, request=_REQUEST, errors=INFERENCE_ERRORS, details='Images are {"b64": …}.'
)
_GET_STATUS = operation("Ask for the state of a model", _TAG, response=_STATUS)
_GET_METADATA = operation("Describe a model", _TAG, response=_SIGNATURE)

ROUTES = tuple(
    Route(f"/v1/models/{{model}}{base}{tail}", {verb: answer}, {verb: text}, protocol=_PROTOCOL)
    for base in ("/versions/{version}", "/labels/{label}", "")
    for tail, verb, answer, text in (
        (":predict", "POST", predict, _PREDICT),
        ("/metadata", "GET", metadata, _GET_METADATA),
        ("", "GET", status, _GET_STATUS),
    )
)
