"""Makes an OpenVINO model of another framework's, and compares the two on real rows before it is used."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orca.backends.base import Backend
from orca.backends.openvino import settings
from orca.backends.openvino.files import ModelFiles
from orca.backends.openvino.ports import Port
from orca.backends.openvino.reading import core
from orca.backends.openvino.replica import OpenvinoReplica
from orca.backends.openvino.spec import OpenvinoSpec, cache_of
from orca.core.machine import usable_cpus
from orca.errors import DataError
from orca.shards.tree import describe, leaves, tree_map

RTOL, ATOL = 1e-3, 1e-4
"""How far outputs may differ from those of the framework: by RTOL times the value, plus ATOL."""


def accelerate(
    backend: Backend, model: Any, sample: Any, output: Any, config: Mapping[str, Any] | None
) -> OpenvinoSpec:
    """A model of `backend` as OpenVINO's; `output` is what it gives for the rows of `sample`."""
    chosen = dict(config or {})
    settings.check(chosen)
    with tempfile.TemporaryDirectory(prefix="orca-openvino-") as folder:
        path = f"{folder}/model.xml"
        try:
            backend.export(model, "openvino", path, sample)
        except DataError:
            # Whether whole numbers are indices or plain numbers only the model knows.
            real = tree_map(lambda leaf: leaf.astype("f4") if leaf.dtype.kind in "biu" else leaf, sample)
            if describe(real) == describe(sample):
                raise
            backend.export(model, "openvino", path, real)
        with open(path, "rb") as xml, open(path[:-4] + ".bin", "rb") as weights:
            made = core().read_model(xml.read(), weights.read())
    told = f"the {backend.framework} model"
    spec = OpenvinoSpec.of(made, ModelFiles.of(made, cache_of(chosen)), chosen, told=told)
    spec.form = form_of(output, spec.outputs)
    compare(spec, sample, output, backend.framework)
    return spec


def form_of(output: Any, ports: Sequence[Port]) -> Any:
    """The structure of an output with the numbers of the ports as leaves: by name where names agree, else in order."""
    named = {name: number for number, port in enumerate(ports) for name in port.names}
    found = [name for name, _ in leaves(output)]
    if len(found) != len(ports):
        raise DataError(f"The model gives {len(found)} outputs, and {len(ports)} once converted.")
    by_name = all(name in named for name in found)
    places = itertools.count()
    numbers = iter([named[name] if by_name else next(places) for name in found])
    return tree_map(lambda leaf: next(numbers), output)


def compare(spec: OpenvinoSpec, sample: Any, output: Any, framework: str) -> None:
    """Raise unless the converted model gives what the framework gave, within RTOL and ATOL."""
    given = OpenvinoReplica(spec, usable_cpus()).predict_step(sample)
    for (name, wanted), (_, found) in zip(leaves(output), leaves(given), strict=True):
        what = f"output {name!r}" if name else "the output"
        if np.shape(found) != np.shape(wanted):
            raise DataError(f"OpenVINO gives {what} the shape {np.shape(found)}, {framework} {np.shape(wanted)}.")
        found, wanted = np.asarray(found, "f8"), np.asarray(wanted, "f8")
        if not np.allclose(found, wanted, rtol=RTOL, atol=ATOL, equal_nan=True):
            worst = float(np.nanmax(np.abs(found - wanted)))
            raise DataError(
                f"OpenVINO gives other numbers than {framework}: {what} of the first rows differs by up to "
                f"{worst:.3g}; allowed are {RTOL:g} of the value and {ATOL:g}. Predict without accelerator=, or check "
                "that the model gives the same output for the same rows each time."
            )
