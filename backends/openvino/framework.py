"""OpenVINO as a framework: models that only predict, in OpenVINO's own format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import openvino

from orca.backends.base import Framework, Inputs, State
from orca.backends.openvino.core import core
from orca.backends.openvino.spec import OpenvinoSpec
from orca.errors import ArgumentError, suggest


class OpenvinoFramework(Framework[OpenvinoSpec]):
    """Models in OpenVINO's own format, or converted to it."""

    name = "openvino"
    arguments = ("model_path", "model", "config", "layout", "shape", "example")
    file_suffixes = (".xml",)
    inference_only = True

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> OpenvinoSpec:
        return OpenvinoSpec.make(**arguments)

    def model(self, spec: OpenvinoSpec, state: State | None, seed: int) -> Any:
        return core().read_model(str(spec.files.path(spec.cache)))

    def write_model(self, model: Any, path: str) -> None:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        openvino.save_model(model, path, compress_to_fp16=False)

    def read_model(self, spec: OpenvinoSpec, path: str, custom_objects: Mapping[str, object] | None) -> State:
        raise ArgumentError(
            f"load({path!r}) is not supported for OpenVINO: create another estimator with "
            f"from_openvino(model_path={path!r})."
        )

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        if kind != "openvino":
            raise ArgumentError(f'export({kind!r}): expected "openvino".' + suggest(kind, ["openvino"]))
        target = path if path.endswith(".xml") else f"{path}.xml"
        self.write_model(model, target)
        return target

    def inputs(self, spec: OpenvinoSpec) -> Inputs:
        return Inputs(len(spec.inputs), tuple(port.name for port in spec.inputs))

    def output_count(self, spec: OpenvinoSpec) -> int | None:
        return len(spec.outputs)

    def other_kinds(self, spec: OpenvinoSpec) -> str:
        return "US"  # the types of the inputs decide

    def batch_size(self, spec: OpenvinoSpec, requested: int | None) -> int:
        return spec.batch_size(requested)

    def outputs_like(self, spec: OpenvinoSpec, features: Any) -> Any:
        return spec.blank(features)

    def check_features(self, spec: OpenvinoSpec, features: Any) -> None:
        spec.fits(features)
