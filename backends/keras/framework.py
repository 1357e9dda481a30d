"""Keras as a framework: models, files, callbacks and scores, whatever keeps the replicas in sync."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import numpy as np

from orca.backends.base import Framework, Inputs, State
from orca.backends.keras.checking import check_rows, label_rules, takes_text
from orca.backends.keras.files import read_file
from orca.backends.keras.replica import build_on
from orca.backends.keras.settings import preserved_settings
from orca.backends.keras.spec import KerasSpec
from orca.backends.keras.state import load_optimizers, load_weights, named_weights, optimizers_of
from orca.core.arguments import wrong
from orca.errors import ArgumentError, DataError
from orca.shards.checks import Rules

if TYPE_CHECKING:
    from orca.callbacks import Callback


class KerasFramework(Framework[KerasSpec]):
    """Keras 3 models."""

    name = "keras"
    arguments = ("model", "keras_model", "model_creator", "compile_args_creator", "config")
    aliases: ClassVar[Mapping[str, str]] = {
        "tf2": "multiworker",
        "tf_distributed": "multiworker",
        "bigdl": "parameter_server",
        "ps": "parameter_server",
    }
    file_suffixes = (".keras", ".h5", ".hdf5")
    triples = True
    largest_seed = 2**32 - 1

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> KerasSpec:
        model, keras_model = arguments.get("model"), arguments.get("keras_model")
        if model is not None and keras_model is not None:
            raise ArgumentError("Give one of model= and keras_model=, not both.")
        if keras_model is not None and not isinstance(keras_model, keras.Model):
            raise wrong("keras_model", keras_model, "a compiled keras.Model")
        return KerasSpec(
            model if keras_model is None else keras_model,
            arguments.get("model_creator"),
            arguments.get("compile_args_creator"),
            dict(arguments.get("config") or {}),
            dict(options),
        )

    def model(self, spec: KerasSpec, state: State | None, seed: int) -> Any:
        with preserved_settings():
            model = seeded_model(spec, seed)
        if state:
            if not model.built and state.get("inputs") is not None:
                build_on(model, state["inputs"])
            if not model.built:
                raise ArgumentError(
                    f"The Keras model {model.name!r} does not know its input shape before it is called: begin it with "
                    "keras.Input(shape=…), or build it in model_creator."
                )
            load_weights(model, state["model"])
            load_optimizers(optimizers_of(model), state, model)
        return model

    def write_model(self, model: Any, path: str) -> None:
        if path.endswith(".weights.h5"):
            model.save_weights(path)
        else:
            model.save(path)

    def read_model(self, spec: KerasSpec, path: str, custom_objects: Mapping[str, object] | None) -> State:
        if not os.path.exists(path):
            raise DataError(f"path={path!r} does not exist.")
        if path.endswith(".weights.h5"):
            with preserved_settings():
                model = spec.make_model()
            model.load_weights(path)
            return {"model": named_weights(model)}
        model, slots = read_file(spec, path, custom_objects)
        state: State = {"model": named_weights(model)}
        if slots is not None:
            state["optimizer"] = {"optimizer": slots}
        return state

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        from orca.backends.keras.export import export

        return export(model, kind, path, example)

    def inputs(self, spec: KerasSpec) -> Inputs:
        inputs = getattr(spec.model, "inputs", None)
        return Inputs(len(inputs) if inputs else None)

    def output_count(self, spec: KerasSpec) -> int | None:
        outputs = getattr(spec.model, "outputs", None)
        return len(outputs) if outputs else None

    def other_kinds(self, spec: KerasSpec) -> str:
        return "US" if spec.model is None or takes_text(spec.model) else ""

    def label_rules(self, spec: KerasSpec) -> Rules:
        return {} if spec.model is None else label_rules(spec.model)

    def check_features(self, spec: KerasSpec, features: Any) -> None:
        self.check_rows(spec, {"x": features})

    def check_rows(self, spec: KerasSpec, rows: Mapping[str, Any]) -> None:
        if spec.model is not None:
            check_rows(spec.model, dict(rows))

    def score_name(self, spec: KerasSpec) -> str:
        loss = getattr(spec.model, "loss", None) if spec.model is not None else None
        name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
        return "accuracy" if loss is None or "crossentropy" in str(name) else "r2"

    def adapt_callback(self, callback: object) -> Callback | None:
        from orca.backends.keras.callbacks import adapt

        return adapt(callback)


def seeded_model(spec: KerasSpec, seed: int) -> Any:
    """Create a model with the same first weights as on the ranks; this process's random numbers are unchanged."""
    if spec.creator is None:
        return spec.make_model()
    numbers, arrays = random.getstate(), np.random.get_state()
    try:
        keras.utils.set_random_seed(seed)
        return spec.make_model()
    finally:
        random.setstate(numbers)
        np.random.set_state(arrays)
