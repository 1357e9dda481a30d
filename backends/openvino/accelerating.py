"""Converts a model of another framework to OpenVINO and compares the two on real rows before it is used."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orca.backends.base import Framework
from orca.backends.openvino import settings
from orca.backends.openvino.core import core
from orca.backends.openvino.files import ModelFiles
from orca.backends.openvino.ports import Port
from orca.backends.openvino.replica import OpenvinoReplica
from orca.backends.openvino.spec import OpenvinoSpec, cache_of
from orca.core.machine import usable_cpus
from orca.errors import DataError
from orca.shards.tree import describe, leaves, tree_map

RTOL, ATOL = 1e-3, 1e-4
"""Tolerance for differences from the framework's outputs: RTOL times the value, plus ATOL."""


def accelerate(
    framework: Framework[Any], model: Any, sample: Any, output: Any, config: Mapping[str, Any] | None
) -> OpenvinoSpec:
    """Convert a model of `framework`; `output` is its output for the rows of `sample`."""
    chosen = dict(config or {})
    settings.check(chosen)
    with tempfile.TemporaryDirectory(prefix="orca-openvino-") as folder:
        path = f"{folder}/model.xml"
        try:
            framework.export(model, "openvino", path, sample)
        except DataError:
            # Only the model knows whether integers are indices or plain numbers.
            real = tree_map(lambda leaf: leaf.astype("f4") if leaf.dtype.kind in "biu" else leaf, sample)
            if describe(real) == describe(sample):
                raise
            framework.export(model, "openvino", path, real)
        with open(path, "rb") as xml, open(path[:-4] + ".bin", "rb") as weights:
            network = core().read_model(xml.read(), weights.read())
    origin = f"the {framework.name} model"
    spec = OpenvinoSpec.of(network, ModelFiles.of(network, cache_of(chosen)), chosen, origin=origin)
    spec = replace(spec, form=form_of(output, spec.outputs))
    compare(spec, sample, output, framework.name)
    return spec


def form_of(output: Any, ports: Sequence[Port]) -> Any:
    """Return the structure of an output with port numbers as leaves: by name where names agree, else in order."""
    named = {name: number for number, port in enumerate(ports) for name in port.names}
    names = [name for name, _ in leaves(output)]
    if len(names) != len(ports):
        raise DataError(f"The model gives {len(names)} outputs, and {len(ports)} once converted.")
    by_name = all(name in named for name in names)
    places = itertools.count()
    numbers = iter([named[name] if by_name else next(places) for name in names])
    return tree_map(lambda leaf: next(numbers), output)


def compare(spec: OpenvinoSpec, sample: Any, output: Any, framework: str) -> None:
    """Raise unless the converted model reproduces the framework's output within RTOL and ATOL."""
    converted = OpenvinoReplica(spec, usable_cpus()).predict_step(sample)
    for (name, expected), (_, actual) in zip(leaves(output), leaves(converted), strict=True):
        what = f"output {name!r}" if name else "the output"
        if np.shape(actual) != np.shape(expected):
            raise DataError(f"OpenVINO gives {what} the shape {np.shape(actual)}, {framework} {np.shape(expected)}.")
        actual, expected = np.asarray(actual, "f8"), np.asarray(expected, "f8")
        if not np.allclose(actual, expected, rtol=RTOL, atol=ATOL, equal_nan=True):
            worst = float(np.nanmax(np.abs(actual - expected)))
            raise DataError(
                f"OpenVINO gives other numbers than {framework}: {what} of the first rows differs by up to "
                f"{worst:.3g}; allowed are {RTOL:g} of the value plus {ATOL:g}. Predict without accelerator=, or check "
                "that the model gives the same output for the same rows each time."
            )
