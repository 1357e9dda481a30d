"""The OpenVINO backend: it builds replicas for predictions and trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import openvino

from orca.backends.base import Backend, FitCheck, Replica, Traits
from orca.backends.openvino import settings
from orca.backends.openvino.framework import OpenvinoFramework
from orca.backends.openvino.ports import shown
from orca.backends.openvino.replica import OpenvinoReplica, refuse
from orca.backends.openvino.spec import OpenvinoSpec
from orca.core.machine import granted_threads, usable_cpus

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


class OpenvinoBackend(Backend[OpenvinoSpec]):
    """Inference with several requests in flight."""

    name = "openvino"
    framework = OpenvinoFramework()
    traits = Traits(
        preload=("openvino", "orca.backends.openvino.backend", "orca.backends.worker.inference"),
        preload_shared=False,
        gpus=False,
    )

    def check(self, spec: OpenvinoSpec, workers: int) -> None:
        """Do nothing: the model was checked when the spec was created."""

    def check_fit(self, spec: OpenvinoSpec, fit: FitCheck) -> None:
        refuse("fit")

    def check_evaluate(self, spec: OpenvinoSpec) -> None:
        refuse("evaluate")

    def build(self, spec: OpenvinoSpec, context: RankContext, seed: int, workers: int) -> Replica:
        refuse("fit")

    def build_alone(self, spec: OpenvinoSpec, seed: int, threads: int | None) -> Replica:
        if threads is None:
            threads = granted_threads()
        return OpenvinoReplica(spec, threads or usable_cpus())

    def notes(self, spec: OpenvinoSpec) -> Sequence[str]:
        properties = settings.properties(spec.config, 0)
        inputs = [f"{port.name} {shown(port.shape)} {port.dtype}" for port in spec.inputs]
        outputs = [f"{port.name} {shown(port.shape)} {port.dtype}" for port in spec.outputs]
        return [
            f"openvino {openvino.__version__.partition('-')[0]} on {settings.device(spec.config)}: "
            + ", ".join(f"{key.lower()} {value}" for key, value in properties.items()),
            f"inputs: {', '.join(inputs)}; outputs: {', '.join(outputs)}",
        ]


openvino_backend = OpenvinoBackend()
