"""The OpenVINO backend as the estimator sees it: it checks, builds a replica for predictions, and trains nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import openvino

from orca.backends.base import Backend, Replica, State
from orca.backends.openvino import settings
from orca.backends.openvino.ports import shown
from orca.backends.openvino.reading import core
from orca.backends.openvino.replica import OpenvinoReplica, refuse
from orca.backends.openvino.spec import OpenvinoSpec
from orca.core.machine import usable_cpus
from orca.errors import ArgumentError, suggest

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


class OpenvinoBackend(Backend):
    """Models in OpenVINO's own format."""

    name = "openvino"
    framework = "openvino"
    preload = ("openvino", "orca.backends.openvino.backend", "orca.backends.worker.inference")
    preload_shared = False
    files = (".xml",)
    pretrained = True

    def check(self, spec: OpenvinoSpec, workers: int) -> None:
        """Nothing is left to check: the model was read when the spec was made."""

    def check_fit(self, spec: OpenvinoSpec) -> None:
        refuse("fit")

    def check_evaluate(self, spec: OpenvinoSpec) -> None:
        refuse("evaluate")

    def check_features(self, spec: OpenvinoSpec, features: Any) -> None:
        spec.fits(features)

    def travels(self, spec: OpenvinoSpec) -> dict[str, Any]:
        return {}

    def build(self, spec: OpenvinoSpec, context: RankContext, seed: int) -> Replica:
        refuse("fit")

    def build_alone(self, spec: OpenvinoSpec, seed: int, threads: int | None) -> Replica:
        if threads is None:
            threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        return OpenvinoReplica(spec, threads or usable_cpus())

    def batch_size(self, spec: OpenvinoSpec, asked: int | None) -> int:
        return spec.batch_size(asked)

    def outputs_like(self, spec: OpenvinoSpec, features: Any) -> Any:
        return spec.blank(features)

    def model(self, spec: OpenvinoSpec, state: State | None, seed: int) -> Any:
        return core().read_model(str(spec.files.path(spec.cache)))

    def write_model(self, model: Any, path: str) -> None:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        openvino.save_model(model, path, compress_to_fp16=False)

    def read_model(self, spec: OpenvinoSpec, path: str, custom_objects: Mapping[str, Any] | None) -> State:
        raise ArgumentError(
            f"load({path!r}) is not there for OpenVINO: make another estimator with from_openvino(model_path={path!r})."
        )

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        if kind != "openvino":
            raise ArgumentError(f'export({kind!r}): expected "openvino".' + suggest(kind, ["openvino"]))
        target = path if path.endswith(".xml") else f"{path}.xml"
        self.write_model(model, target)
        return target

    def input_count(self, spec: OpenvinoSpec) -> int | None:
        return len(spec.inputs)

    def input_names(self, spec: OpenvinoSpec) -> list[str]:
        return [port.name for port in spec.inputs]

    def notes(self, spec: OpenvinoSpec) -> Sequence[str]:
        told = settings.properties(spec.config, 0)
        ports = [f"{port.name} {shown(port.shape)} {port.dtype}" for port in spec.inputs]
        results = [f"{port.name} {shown(port.shape)} {port.dtype}" for port in spec.outputs]
        return [
            f"openvino {openvino.__version__.partition('-')[0]} on {settings.device(spec.config)}: "
            + ", ".join(f"{key.lower()} {value}" for key, value in told.items()),
            f"inputs: {', '.join(ports)}; outputs: {', '.join(results)}",
        ]


openvino_backend = OpenvinoBackend()
