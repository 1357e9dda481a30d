"""The parts of a Symbol or Module model: inputs, labels, parameters and loss layers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import mxnet as mx
import numpy as np

from orca.errors import ArgumentError

_LOSSES = ("MakeLoss", "make_loss")
_HEADS = ("SoftmaxOutput", "Softmax", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
_TINY = 1e-12


@dataclass(frozen=True)
class Graph:
    """A symbol with the names of its inputs and labels, and its parameter values, if any."""

    symbol: Any
    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    values: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    """Parameters that are not trained."""

    @classmethod
    def of(cls, model: Any) -> Graph:
        """Read a Module or Symbol."""
        if isinstance(model, mx.mod.Module):
            values: dict[str, Any] = {}
            if model.params_initialized:
                arguments, auxiliary = model.get_params()
                values = {**arguments, **auxiliary}
            if model._state_names:
                raise ArgumentError(
                    f"The Module has state_names={list(model._state_names)}, which persist between batches. "
                    "This is not supported: make them inputs or parameters."
                )
            names = (model._data_names, model._label_names or (), model._fixed_param_names or ())
            inputs, labels, fixed = map(tuple, names)
            graph = cls(model.symbol, inputs, labels, values, fixed)
            if not graph.learned:
                raise ArgumentError("fixed_param_names= of the Module names all parameters: leave some trainable.")
            return graph
        names = model.list_arguments()
        labels = tuple(name for name in names if name == "label" or name.endswith("_label"))
        inputs = tuple(name for name in names if name.split("_")[0].rstrip("0123456789") == "data")
        if not inputs:
            raise ArgumentError(
                f"The symbol has no input whose name begins with data (its arguments: {', '.join(names)}). Name the "
                "inputs data…, or pass a Module with data_names= and label_names=."
            )
        return cls(model, inputs, labels)

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters, trainable or fixed."""
        other = {*self.inputs, *self.labels}
        return [name for name in self.symbol.list_arguments() if name not in other]

    @property
    def learned(self) -> list[str]:
        """The names of the trainable parameters."""
        return [name for name in self.parameters if name not in self.fixed]

    def heads(self) -> list[tuple[str, dict[str, str]]]:
        """Return the operations that produce the outputs, with their attributes."""
        graph = json.loads(self.symbol.tojson())
        nodes = [graph["nodes"][head[0]] for head in graph["heads"]]
        return [(node["op"], node.get("attrs") or node.get("param") or {}) for node in nodes]

    def without_labels(self) -> Any:
        """Return a symbol with the same outputs that needs no labels."""
        outputs = []
        for output, (head, attributes) in zip(list(self.symbol), self.heads(), strict=True):
            if head not in _HEADS:
                outputs.append(output)
                continue
            inner = output.get_children()[0]
            if head.startswith("Softmax"):
                outputs.append(mx.sym.softmax(inner, axis=1 if _is_set(attributes, "multi_output") else -1))
            else:
                outputs.append(mx.sym.sigmoid(inner) if head == "LogisticRegressionOutput" else inner)
        return outputs[0] if len(outputs) == 1 else mx.sym.Group(outputs)

    def averages(self) -> bool:
        """Return whether the loss layers divide their gradient by the rows of the batch."""
        heads = [attributes for head, attributes in self.heads() if head in (*_HEADS, *_LOSSES)]
        modes = {attributes.get("normalization", "null") for attributes in heads}
        if len(modes) > 1:
            raise ArgumentError(f"The symbol's losses have normalization={', '.join(sorted(modes))}: use one for all.")
        if "valid" in modes:
            raise ArgumentError(
                'The symbol\'s loss has normalization="valid", which cannot be reduced across workers: use "null".'
            )
        return modes == {"batch"}

    def loss(self, outputs: list[Any], labels: list[Any]) -> float | None:
        """Return the loss summed over the rows, or None if it cannot be computed from the outputs."""
        total = 0.0
        remaining = list(labels)
        for (head, attributes), output in zip(self.heads(), outputs, strict=True):
            if head in _LOSSES:
                total += float(np.sum(output))
                continue
            if head not in _HEADS or not remaining:
                return None
            label = remaining.pop(0)
            if head.startswith("Softmax"):
                total += _cross_entropy(output, label, attributes)
            else:
                total += _regression(head, output, label)
        return total


def _is_set(attributes: dict[str, str], name: str) -> bool:
    return attributes.get(name, "False") in ("True", "true", "1")


def _cross_entropy(output: Any, label: Any, attributes: dict[str, str]) -> float:
    multi = _is_set(attributes, "multi_output")
    preserved = _is_set(attributes, "preserve_shape")
    scores = np.moveaxis(output, 1, -1) if multi else output if preserved else output.reshape(len(output), -1)
    scores = scores.reshape(-1, scores.shape[-1])
    classes = label.reshape(-1).astype(np.int64)
    keep = np.ones(len(classes), bool)
    if _is_set(attributes, "use_ignore"):
        keep = classes != int(float(attributes.get("ignore_label", "-1")))
    likely = scores[np.arange(len(classes))[keep], classes[keep]]
    pieces = max(1, len(classes) // max(1, len(output)))
    return float(-np.log(np.maximum(likely, _TINY)).sum() / pieces)


def _regression(head: str, output: Any, label: Any) -> float:
    target = label.reshape(output.shape).astype(np.float64)
    width = max(1, output[:1].size)
    if head == "LinearRegressionOutput":
        return float(np.square(output - target).sum() / 2 / width)
    if head == "MAERegressionOutput":
        return float(np.abs(output - target).sum() / width)
    likely = np.clip(output, _TINY, 1 - 1e-7)
    return float(-(target * np.log(likely) + (1 - target) * np.log(1 - likely)).sum() / width)
