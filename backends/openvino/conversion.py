"""Writes models of other frameworks, converted by OpenVINO, with the inputs and outputs in their own order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca.backends.openvino import telemetry


def convert(source: Any, path: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Convert a SavedModel folder and write it as IR.

    A SavedModel sorts its inputs and outputs by name; `inputs` and `outputs` are their names in the model's own order.
    """
    import openvino

    telemetry.off()
    converted = openvino.convert_model(source)
    parameters = _sorted(converted.get_parameters(), converted.inputs, inputs)
    results = _sorted(converted.get_results(), converted.outputs, outputs)
    model = openvino.Model(results, parameters, converted.get_friendly_name())
    openvino.save_model(model, path, compress_to_fp16=False)


def _sorted(nodes: Sequence[Any], ports: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return the nodes in the order of these names, if they match."""
    by_name = {name: node for node, port in zip(nodes, ports, strict=True) for name in port.get_names()}
    return [by_name[name] for name in names] if len(names) == len(nodes) and set(names) <= set(by_name) else list(nodes)
