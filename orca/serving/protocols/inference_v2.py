"""The Open Inference Protocol, version 2, as KServe, Triton and OpenVINO Model Server speak it."""

from __future__ import annotations

from typing import Any

import numpy as np

from orca.serving import checks, images
from orca.serving.catalog import Served
from orca.serving.datatypes import BYTES, DATATYPES, DTYPES
from orca.serving.messages import BINARY, JSON, HttpError, Reply, Request, json_reply, parse_json
from orca.serving.openapi import INFERENCE_ERRORS, READ_ERRORS, named_schema, operation
from orca.serving.protocols import binary_v2
from orca.serving.routing import Route
from orca.store.values import Port

Array = np.ndarray[Any, Any]
_PROTOCOL = "v2"
_UNSUPPORTED = ("classification", "shared_memory_region", "sequence_id")


async def model_metadata(request: Request) -> Reply:
    """Describe a model: versions, inputs and outputs."""
    served = await request.app.served(request)
    versions = request.app.catalog.descriptions.get(served.version.name, {}).get("versions", {served.version.number})
    return json_reply(
        {
            "name": request.parameters["model"],
            "versions": [str(number) for number in sorted({*versions, served.version.number})],
            "platform": "openvino",
            "inputs": [_described(port) for port in served.inputs],
            "outputs": [_described(port) for port in served.outputs],
        }
    )


def _described(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": DATATYPES[str(np.dtype(port.dtype))], "shape": list(port.shape)}


async def model_ready(request: Request) -> Reply:
    """Say that a model is ready."""
    await request.app.served(request)
    return json_reply({"name": request.parameters["model"], "ready": True})


async def infer(request: Request) -> Reply:
    """Compute the outputs for the tensors of a request."""
    request.check_type(JSON, BINARY)
    served = await request.app.served(request)
    body = await request.body()
    head, data = binary_v2.split(request, body)
    message = parse_json(head)
    tensors = binary_v2.Tensors(data)
    most_pixels = request.app.settings.max_pixels
    if _has_images(message):
        arrays = await request.app.decode(_inputs, message, served, tensors, most_pixels)
    else:
        arrays = _inputs(message, served, tensors, most_pixels)
    tensors.finish()
    chosen = _outputs(message, served)
    results = await served.compute(arrays)
    return _reply(request, message, served, chosen, results)


def _has_images(message: dict[str, Any]) -> bool:
    entries = message.get("inputs")
    for entry in entries if type(entries) is list else ():
        if type(entry) is dict and entry.get("datatype") == BYTES:
            return True
    return False


def _inputs(message: dict[str, Any], served: Served, tensors: binary_v2.Tensors, most_pixels: int) -> list[Array]:
    entries = message.get("inputs")
    if type(entries) is not list or not {dict}.issuperset(map(type, entries)):
        raise HttpError(400, "The request has no list of 'inputs' with one object per tensor.")
    ports = {port.name: port for port in served.inputs}
    arrays: dict[str, Array] = {}
    for entry in entries:
        name = entry.get("name")
        port = ports.get(name) if type(name) is str else None
        if port is None:
            names = ", ".join(map(repr, ports))
            raise HttpError(400, f"An entry of 'inputs' has a name that the model does not have. Inputs: {names}.")
        if name in arrays:
            raise HttpError(400, f"The input {name!r} occurs twice.")
        arrays[port.name] = _array(entry, port, tensors, most_pixels)
    if len(arrays) != len(ports):
        missing = [name for name in ports if name not in arrays]
        raise HttpError(400, f"The request has no input {missing[0]!r}.")
    return [arrays[name] for name in ports]


def _array(entry: dict[str, Any], port: Port, tensors: binary_v2.Tensors, most_pixels: int) -> Array:
    name = port.name
    datatype = entry.get("datatype")
    if datatype != BYTES and (type(datatype) is not str or datatype not in DTYPES):
        raise HttpError(400, f"The datatype of {name!r} has to be one of {', '.join((*DTYPES, BYTES))}.")
    shape = checks.parse_shape(name, entry.get("shape"))
    parameters = _parameters(entry, f"the input {name!r}")
    binary = "binary_data_size" in parameters
    if not binary and "data" not in entry:
        raise HttpError(400, f"The input {name!r} has no 'data'.")
    if datatype == BYTES:
        return _images(entry, port, shape, parameters, tensors, most_pixels)
    dtype = DTYPES[datatype]
    if not checks.can_cast(dtype, port.dtype):
        expected = DATATYPES[str(np.dtype(port.dtype))]
        raise HttpError(400, f"The input {name!r} takes {expected}; the request has {datatype}.")
    checks.check_shape(port, shape)
    if binary:
        raw = tensors.take(name, parameters["binary_data_size"])
        return checks.cast(port, binary_v2.to_array(name, datatype, shape, raw))
    values, nested = checks.flatten(name, entry["data"])
    if len(nested) > 1 and nested != shape:
        raise HttpError(
            400, f"The input {name!r} has the shape {checks.shown(shape)}; its data has {checks.shown(nested)}."
        )
    return checks.cast(port, checks.to_array(port, values, shape, dtype))


def _images(
    entry: dict[str, Any],
    port: Port,
    shape: list[int],
    parameters: dict[str, Any],
    tensors: binary_v2.Tensors,
    most_pixels: int,
) -> Array:
    """Return JPEG and PNG images: as binary elements, or as base64 texts with content_type "base64"."""
    if "binary_data_size" in parameters:
        raw = tensors.take(port.name, parameters["binary_data_size"])
        encoded = binary_v2.to_elements(port.name, shape, raw)
    elif parameters.get("content_type") == "base64":
        texts, _ = checks.flatten(port.name, entry["data"])
        encoded = [images.from_base64(port, text) for text in texts]
    else:
        raise HttpError(
            400, f"BYTES for {port.name!r} have to be images, sent as binary data or with content_type 'base64'."
        )
    array = images.decode_images(port, encoded, most_pixels)
    checks.check_shape(port, array.shape)
    return array


def _parameters(entry: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise HttpError(400, f"The parameters of {where} have to be an object.")
    for name in _UNSUPPORTED:
        if name in parameters:
            raise HttpError(400, f"The parameter {name!r} of {where} is not supported.")
    return parameters


def _outputs(message: dict[str, Any], served: Served) -> list[tuple[int, bool]]:
    """Return the requested outputs: their positions, and whether each is binary."""
    if not isinstance(message.get("id", ""), str):
        raise HttpError(400, "The id has to be a text.")
    binary = bool(_parameters(message, "the request").get("binary_data_output", False))
    entries = message.get("outputs")
    if entries is None or entries == []:
        return [(index, binary) for index in range(len(served.outputs))]
    if type(entries) is not list or not all(type(entry) is dict for entry in entries):
        raise HttpError(400, "'outputs' has to be a list with one object per tensor.")
    names = [port.name for port in served.outputs]
    chosen: list[tuple[int, bool]] = []
    for entry in entries:
        if entry.get("name") not in names:
            listed = ", ".join(map(repr, names))
            raise HttpError(400, f"An entry of 'outputs' has a name that the model does not have. Outputs: {listed}.")
        index = names.index(entry["name"])
        if any(index == earlier for earlier, _ in chosen):
            raise HttpError(400, f"The output {names[index]!r} occurs twice.")
        parameters = _parameters(entry, f"the output {names[index]!r}")
        chosen.append((index, bool(parameters.get("binary_data", binary))))
    return chosen


def _reply(
    request: Request, message: dict[str, Any], served: Served, chosen: list[tuple[int, bool]], results: list[Array]
) -> Reply:
    outputs: list[dict[str, Any]] = []
    tensors: list[Array] = []
    for index, binary in chosen:
        array, (name, datatype) = results[index], served.heads[index]
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if binary:
            entry["parameters"] = {"binary_data_size": array.nbytes}
            tensors.append(array)
        else:
            entry["data"] = array.ravel()
        outputs.append(entry)
    head: dict[str, Any] = {"model_name": request.parameters["model"], "model_version": served.number}
    if "id" in message:
        head["id"] = message["id"]
    head["outputs"] = outputs
    if tensors:
        return binary_v2.reply(head, tensors, [])
    return json_reply(head)


_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"enum": [*DTYPES, BYTES]},
        "parameters": {"type": "object"},
        "data": {"type": "array", "description": "Nested or flat, row by row."},
    },
}
_REQUEST = named_schema(
    "InferRequest",
    {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": {"type": "array", "items": {**_TENSOR, "required": ["name", "shape", "datatype", "data"]}},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
                },
            },
        },
        "examples": [{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1.5]}]}],
    },
)
_RESPONSE = named_schema(
    "InferResponse",
    {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {"type": "array", "items": _TENSOR},
        },
    },
)
_PORT = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": -1}},
    },
}
_METADATA = named_schema(
    "ModelMetadata",
    {
        "type": "object",
        "required": ["name", "versions", "platform", "inputs", "outputs"],
        "properties": {
            "name": {"type": "string"},
            "versions": {"type": "array", "items": {"type": "string"}},
            "platform": {"type": "string"},
            "inputs": {"type": "array", "items": _PORT},
            "outputs": {"type": "array", "items": _PORT},
        },
    },
)
_READY = named_schema(
    "ModelReady",
    {
        "type": "object",
        "required": ["name", "ready"],
        "properties": {"name": {"type": "string"}, "ready": {"type": "boolean"}},
    },
)
_INFER = operation(
    "Compute the outputs of a model",
    "Open Inference Protocol",
    response=_RESPONSE,
    request=_REQUEST,
    errors=INFERENCE_ERRORS,
    details="Tensors may also follow the JSON as raw bytes (binary_data_size, Inference-Header-Content-Length); JPEG "
    "and PNG images are BYTES. In JSON, NaN and infinity are null; binary replies have them exactly.",
    binary=True,
)
_DESCRIBE = operation("Describe a model", "Open Inference Protocol", response=_METADATA, errors=READ_ERRORS)
_IS_READY = operation("Ask whether a model is ready", "Open Inference Protocol", response=_READY, errors=READ_ERRORS)

ROUTES = tuple(
    Route(f"{base}{tail}", {verb: answer}, {verb: text}, protocol=_PROTOCOL)
    for base in ("/v2/models/{model}/versions/{version}", "/v2/models/{model}")
    for tail, verb, answer, text in (
        ("/infer", "POST", infer, _INFER),
        ("/ready", "GET", model_ready, _IS_READY),
        ("", "GET", model_metadata, _DESCRIBE),
    )
)
