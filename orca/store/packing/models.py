"""Any model that can be put: which module packs it, and how a version is opened again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orca.backends.registry import find
from orca.core.arguments import shown
from orca.errors import ArgumentError, DataError
from orca.estimator import Estimator
from orca.runs import saved_states
from orca.runs.values import Learned, Setup
from orca.store.packing import estimators, keras_models, model_files
from orca.store.packing.facts import Facts, Request, manifest_of

_EXPECTED = (
    "an Estimator, a Keras, torch (with example=) or OpenVINO model, or the path of a model file or SavedModel folder"
)


def pack(model: Any, folder: Path, request: Request) -> dict[str, Any]:
    """Write all files of a model to a folder and return their manifest."""
    try:
        return manifest_of(_packed(model, folder, request), request, folder)
    except (ArgumentError, DataError) as error:
        text = str(error).replace("Predict without accelerator=, or check", "Check")
        raise type(error)(text.replace("model_path=", "obj=")) from error


def _packed(model: Any, folder: Path, request: Request) -> Facts:
    if isinstance(model, Estimator):
        return estimators.pack(model, folder, request)
    if keras_models.is_keras(model):
        return keras_models.pack(model, folder, request)
    if isinstance(model, str | os.PathLike):
        text = os.fspath(model)
        if not isinstance(text, str) or not text or "\0" in text or "://" in text:
            raise ArgumentError(f"obj={model!r}: expected {_EXPECTED}; download files from other places first.")
        return model_files.pack(Path(text), folder, request)
    kind = _class_of(model)
    if kind == "openvino":
        return estimators.pack(Estimator.from_openvino(model=model), folder, request)
    if kind == "torch":
        if request.example is None:
            raise ArgumentError("example=None: a torch model does not know its inputs: pass a few rows.")
        facts = estimators.pack(Estimator.from_torch(model=model), folder, request)
        facts.native = {**facts.native, "settings": {}}
        facts.position = {}
        return facts
    raise ArgumentError(f"obj= is a {type(model).__name__}; expected {_EXPECTED}.")


def _class_of(model: Any) -> str:
    """Return the framework of a live model, by the names of its classes."""
    for base in type(model).__mro__:
        package = base.__module__.partition(".")[0]
        if base.__name__ == "Module" and base.__module__.startswith("torch.nn"):
            return package
        if base.__name__ == "Model" and package == "openvino":
            return package
    return ""


@dataclass(frozen=True)
class Stored:
    """The files of a version on this machine, verified."""

    label: str
    folder: Path
    manifest: Mapping[str, Any]

    @property
    def native(self) -> Mapping[str, Any]:
        """How the native form is opened."""
        native: Mapping[str, Any] = self.manifest.get("native", {})
        return native

    def native_path(self) -> Path:
        """Return the file or folder of the native form."""
        name = str(self.native["file"])
        if name not in self.manifest["files"] and not any(
            file.startswith(f"{name}/") for file in self.manifest["files"]
        ):
            raise DataError(f"The store is damaged: the manifest of {self.label} does not name {name!r}.")
        return self.folder / name


def open_native(stored: Stored, trusted: bool, custom_objects: Mapping[str, Any] | None) -> Any:
    """Return the model as it was put: a Keras model or Estimator, a program, or an Estimator of the IR."""
    form = str(stored.native.get("form"))
    if form in ("keras", "keras estimator"):
        model = keras_models.read(stored.native_path(), trusted, custom_objects, f"The file of {stored.label}")
        return model if form == "keras" else _keras_estimator(stored, model)
    if form == "program" and trusted:
        return model_files.open_trusted(stored.native_path(), str(stored.manifest["kind"]))
    return open_ir(stored)


def _keras_estimator(stored: Stored, model: Any) -> Estimator:
    settings = {name: value for name, value in stored.native.get("settings", {}).items() if name != "config"}
    position = stored.manifest.get("position", {})
    estimator = Estimator.from_keras(model=model, seed=position.get("seed"), **settings)
    if "state" in stored.native:
        estimator.load(str(stored.folder / str(stored.native["state"])))
    return estimator


def open_ir(stored: Stored, workers: int = 1) -> Estimator:
    """Return an Estimator that predicts with the converted model."""
    from orca.backends.openvino.spec import OpenvinoSpec

    settings = stored.native.get("settings", {}) if stored.native.get("form") == "openvino" else {}
    config = {name: value for name, value in settings.get("config", {}).items() if name not in ("mean", "scale")}
    spec = OpenvinoSpec.make(model_path=str(stored.folder / "model.xml"), config=config, layout=settings.get("layout"))
    spec = replace(spec, form=stored.manifest.get("form"), origin=stored.label)
    setup = Setup.create(find("openvino", "openvino"), spec, workers=workers)
    return Estimator(setup, Learned.nothing(setup, None))


def check_target(target: Any) -> None:
    """Raise unless this is something that can receive weights."""
    if not isinstance(target, Estimator) and _class_of(target) != "torch":
        raise ArgumentError(f"into={shown(target)}: expected an Estimator or a torch module.")


def load_into(stored: Stored, target: Any) -> Any:
    """Load the stored weights into an Estimator or torch module of the caller, and return it."""
    if "state" not in stored.native:
        kind = stored.manifest.get("kind")
        raise ArgumentError(f"into=: {stored.label} is a {kind} model, which get() returns without into=.")
    path = str(stored.folder / str(stored.native["state"]))
    if isinstance(target, Estimator):
        return target.load(path)
    from orca.backends.torch.state import to_torch

    facts, state = saved_states.load(path)
    if facts.get("framework") != "torch":
        raise ArgumentError(f"into=: {stored.label} was put from {facts.get('framework')}; pass such an Estimator.")
    try:
        target.load_state_dict(to_torch(state["model"]))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"into=: the weights of {stored.label} do not fit this module: {reason}") from error
    return target
