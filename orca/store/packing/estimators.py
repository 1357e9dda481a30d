"""Estimators in a store: the learned state as arrays and JSON, and the model converted to OpenVINO."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orca.errors import ArgumentError
from orca.runs import predict, saved_states, states
from orca.store.packing import keras_models
from orca.store.packing.facts import NATIVE, Facts, Request, checked_sample, random_rows, rows_for

if TYPE_CHECKING:
    from orca.backends.openvino.spec import OpenvinoSpec
    from orca.estimator import Estimator

STATE = f"{NATIVE}/state"
_PACKAGES = {"torch": ("torch",), "mxnet": ("mxnet",), "graph": ("tensorflow-cpu", "tensorflow")}
_SETTINGS = ("backend", "workers", "epochs", "batch_size", "metrics", "config", "layout")


def pack(estimator: Estimator, folder: Path, request: Request) -> Facts:
    """Write an estimator of any framework."""
    setup, learned = estimator._setup, estimator._learned
    framework = setup.backend.framework
    settings = {name: value for name, value in estimator.get_params(deep=False).items() if name in _SETTINGS}
    native = {"framework": framework.name, "settings": {name: v for name, v in settings.items() if _is_plain(v)}}
    position = {"epoch": learned.epoch, "step": learned.step, "seed": learned.seed}
    if framework.inference_only:
        spec: Any = setup.spec
        sample = rows_for(spec) if request.example is None else checked_sample(request.example)
        return Facts("openvino", spec, {"form": "openvino", **native}, sample)
    if request.example is None and learned.example is not None:
        request = replace(request, example=random_rows(learned.example))
    if framework.name == "keras":
        facts = keras_models.pack(states.model_of(setup, learned), folder, request)
        facts.native = {**facts.native, **native, "form": "keras estimator"}
        if learned.state is not None:
            estimator.save(str(folder / STATE))
            facts.native = {**facts.native, "state": STATE}
        facts.position = position
        return facts
    if request.example is None:
        raise ArgumentError("example=None: pass a few rows of input, which show the form of the model's inputs.")
    sample = checked_sample(request.example)
    spec = _converted(estimator, sample)
    _save_state(estimator, str(folder / STATE))
    native |= {"form": "state", "state": STATE}
    return Facts(framework.name, spec, native, sample, _PACKAGES.get(framework.name, ()), position)


def _is_plain(value: Any) -> bool:
    """Return whether a parameter is a JSON value that says something."""
    try:
        return value is not None and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        return False


def _save_state(estimator: Estimator, path: str) -> None:
    if estimator._learned.state is not None:
        estimator.save(path)
        return
    setup, learned = estimator._setup, estimator._learned
    if setup.backend.framework.name != "torch":
        estimator.save(path)  # raises: there is nothing to save yet
    from orca.backends.torch.state import to_plain

    weights = to_plain(dict(states.model_of(setup, learned).state_dict()))
    saved_states.save(path, {**states.about(setup, learned), "epoch": 0, "step": 0}, {"model": weights})


def _converted(estimator: Estimator, sample: Any) -> OpenvinoSpec:
    """Convert a model and compare it with the original on the sample."""
    setup, learned = estimator._setup, estimator._learned
    framework = setup.backend.framework
    with tempfile.TemporaryDirectory(prefix="orca-store-") as folder:
        target = f"{folder}/model.xml"
        path = framework.export_state(setup.spec, learned.state, learned.seed, "openvino", target)
        if path is None:
            converted, _ = predict.converted(setup, learned, sample, predict.PredictionCache())
            spec: Any = converted.spec
            return spec  # type: ignore[no-any-return]
        from orca.backends.openvino.accelerating import compare, form_of
        from orca.backends.openvino.files import ModelFiles
        from orca.backends.openvino.reading import read
        from orca.backends.openvino.spec import OpenvinoSpec, cache_of

        network = read(path, None, None)
        graph = OpenvinoSpec.of(network, ModelFiles.of(network, cache_of({})), {}, origin=f"the {framework.name} model")
    output = estimator.predict(sample)
    graph = replace(graph, form=form_of(output, graph.outputs))
    compare(graph, sample, output, framework.name)
    return graph
