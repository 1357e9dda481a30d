"""BigDL layers as a framework: they are trained by the torch replica."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from orca.backends.base import Inputs, State
from orca.backends.bigdl.container import Sequential
from orca.backends.bigdl.files import load_layer, save_layer
from orca.backends.bigdl.graph import Model
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.linear import Linear
from orca.backends.bigdl.rates import Rates
from orca.backends.bigdl.spec import BigDLSpec, Net
from orca.backends.bigdl.validation import FromOne
from orca.backends.torch.framework import TorchFramework
from orca.backends.torch.losses import label_rules
from orca.backends.torch.state import to_plain, to_torch
from orca.errors import ArgumentError, DataError, OrcaError
from orca.metrics import Accuracy, ClassScore
from orca.shards.checks import Rules
from orca.shards.tree import leaves, tree_map

if TYPE_CHECKING:
    from orca.metrics import Metric

PREFIX = "layers."
"""Begins the names of weights in a state: `Net` holds the layers."""
_SAME_WIDTH = (
    "LogSoftMax", "SoftMax", "Sigmoid", "Tanh", "ReLU", "Dropout", "Identity", "BatchNormalization", "Echo",
)  # fmt: skip
"""Layers whose output has the width of their input."""


class BigDLFramework(TorchFramework):
    """Layers of BigDL."""

    name = "bigdl"
    arguments = ("model", "optimizer", "loss", "feature_preprocessing", "label_preprocessing", "metrics")
    aliases: ClassVar[Mapping[str, str]] = {**TorchFramework.aliases}
    file_suffixes = (".bigdl",)
    metrics_in_spec = True
    callback_arguments = frozenset({"optimizer", "metrics"})

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> BigDLSpec:
        return BigDLSpec(**{"model": None, **arguments}, sync_options=dict(options))

    def model(self, spec: Any, state: State | None, seed: int) -> Any:
        layer: Layer = copy.deepcopy(spec.model)
        if state is not None:
            load_into(layer, state)
        return layer

    def write_model(self, model: Any, path: str) -> None:
        save_layer(model, path, over_write=True)

    def read_model(self, spec: Any, path: str, custom_objects: Mapping[str, object] | None) -> State:
        if custom_objects:
            raise ArgumentError("custom_objects= is for Keras files; layers are known by their classes.")
        weights = load_layer(path).module.state_dict()
        expected = spec.model.module.state_dict()
        if {name: value.shape for name, value in weights.items()} != {k: v.shape for k, v in expected.items()}:
            raise DataError(f"path={path!r} holds a layer with other weights than model={spec.model!r}.")
        return {"model": to_plain({f"{PREFIX}{name}": value for name, value in weights.items()})}

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        return super().export(Net(model, None), kind, path, example)

    def inputs(self, spec: Any) -> Inputs:
        return Inputs()

    def output_count(self, spec: Any) -> int | None:
        return None

    def other_kinds(self, spec: Any) -> str:
        return ""

    def label_rules(self, spec: Any) -> Rules:
        return label_rules(spec.make_loss(), width_of(spec.model))

    def check_features(self, spec: Any, features: Any) -> None:
        _try(spec, features, None)

    def check_rows(self, spec: Any, rows: Mapping[str, Any]) -> None:
        _try(spec, rows["x"], rows.get("y") if isinstance(rows, Mapping) else None)

    def needs_labels(self, spec: Any) -> bool:
        return True

    def tune_metrics(self, spec: Any, metrics: list[Metric]) -> list[Metric]:
        # Labels count from 1 where the criterion counts so; Orca's own metrics count from 0.
        rule = None if spec.loss is None else spec.loss.label_rule()
        if rule is None or rule[0] != 1:
            return metrics
        return [FromOne(metric) if isinstance(metric, Accuracy | ClassScore) else metric for metric in metrics]

    def score_name(self, spec: Any) -> str:
        return "r2" if spec.loss is None or spec.loss.label_rule() is None else "accuracy"

    def own_callbacks(self, spec: Any) -> Sequence[Any]:
        rates = {str(number): method.rate() for number, method in enumerate(spec.methods.values())}
        if all(rate.constant for rate in rates.values()):
            return ()
        metrics = self.metrics(spec, spec.metrics)
        return [Rates(rates, metrics[0].name if metrics else None)]


def load_into(layer: Layer, state: State) -> None:
    """Set the weights of a layer to those that its estimator has learned."""
    layer.module.load_state_dict({name.removeprefix(PREFIX): v for name, v in to_torch(state["model"]).items()})


def width_of(layer: Any) -> int | None:
    """Return the number of outputs per row, if the last layers tell it."""
    shape = getattr(layer, "output_shape", None)  # layers in the style of Keras know it
    if isinstance(shape, tuple) and len(shape) == 1:
        return shape[0] if isinstance(shape[0], int) else None
    if isinstance(layer, Sequential):
        last = next((part for part in reversed(layer.layers) if type(part).__name__ not in _SAME_WIDTH), None)
        return width_of(last)
    if isinstance(layer, Model) and len(layer.outputs) == 1:
        node = layer.outputs[0]
        while type(node.layer).__name__ in _SAME_WIDTH and len(node.previous) == 1:
            node = node.previous[0]
        return width_of(node.layer)
    return layer.output_size if isinstance(layer, Linear) else None


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode; afterwards each part is in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def _try(spec: BigDLSpec, features: Any, labels: Any) -> None:
    """Raise if the model or the criterion does not accept rows of such shapes, by computing two rows of ones."""
    net = spec.make_model()
    loss = spec.make_loss()
    rows = tree_map(_ones, features)
    try:
        with _evaluating(net), torch.random.fork_rng(devices=[]):
            output = net(*rows) if isinstance(rows, list | tuple) else net(rows)
            if labels is not None and loss is not None:
                loss(output, tree_map(lambda leaf: loss.prepare(_ones(leaf)), labels))
    except OrcaError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shapes = ", ".join(f"{('x.' + name) if name else 'x'} {tuple(leaf.shape)}" for name, leaf in leaves(features))
        raise DataError(f"The model does not accept rows of these shapes: {shapes}. {error}") from error


def _ones(leaf: Any) -> torch.Tensor:
    # Indices of layers and class numbers of criteria count from 1.
    return torch.ones((2, *leaf.shape[1:]))
