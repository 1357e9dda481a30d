"""The base of all layers: a BigDL layer holds a torch module that does its computation."""

from __future__ import annotations

import copy
import uuid
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from orca.backends.bigdl.actions import act
from orca.backends.bigdl.debugging import Debugging
from orca.backends.bigdl.initialization import InitializationMethod
from orca.backends.bigdl.kernel import Kernel
from orca.backends.bigdl.left_out import LeftOut
from orca.backends.bigdl.node import Node, nodes
from orca.backends.bigdl.random_stream import RNG
from orca.backends.bigdl.recording import recorded
from orca.backends.bigdl.regularizer import L1L2Regularizer
from orca.backends.bigdl.weights import Weight, grad_key
from orca.core.arguments import check_flag, check_number, check_text, shown
from orca.errors import ArgumentError, listed, suggest

KINDS: dict[str, type[Layer]] = {}
"""All classes of layers by module and name, which files may name."""


class Layer(Debugging, LeftOut):
    """A layer of a network.

    A subclass declares its weights and the layers inside in the constructor, and computes in `compute`. `module` is
    the torch module that holds the weights. First weights are drawn when the layer is created, from the stream that
    `RNG().set_seed(n)` restarts.
    """

    style = "bigdl"
    """Whose conventions a layer follows: "bigdl" counts from 1, "keras" from 0."""
    arguments: dict[str, Any]
    """What the constructor was called with, from which a saved layer is created again."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        KINDS[f"{cls.__module__}.{cls.__name__}"] = cls
        if "__init__" in cls.__dict__:
            cls.__init__ = recorded(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        self._name = f"{type(self).__name__}{uuid.uuid4().hex[:8]}"
        self._weights: dict[str, Weight] = {}
        self._children: dict[str, Layer] = {}
        self._trail: Any = None
        self.module: nn.Module = Kernel(self)

    # What subclasses use

    def declare(
        self,
        name: str,
        shape: Iterable[int],
        method: InitializationMethod,
        fans: tuple[int, int] | None = None,
        value: Any = None,
        regularizer: L1L2Regularizer | None = None,
    ) -> None:
        """Create a weight, drawn by a method or with a value from the user."""
        weight = Weight(name, tuple(int(size) for size in shape), method, fans, value, regularizer)
        self._weights[name] = weight
        self.module.register_parameter(name, nn.Parameter(torch.from_numpy(weight.first())))

    def attach(self, name: str, layer: Layer) -> Any:
        """Make another layer a part of this one."""
        # A network of another kind, such as a TFNet, becomes a layer where it is used.
        layer = layer.as_layer() if hasattr(layer, "as_layer") else layer
        if not isinstance(layer, Layer):
            raise ArgumentError(f"{type(self).__name__} received {shown(layer)}; expected a layer.")
        self._children[name] = layer
        self.module.add_module(name, layer.module)
        return layer

    def compute(self, x: Any) -> Any:
        """Return the output for a tensor or a list of tensors."""
        raise NotImplementedError(f"{type(self).__name__} does not define compute().")

    # What training uses

    def build_module(self) -> nn.Module:
        """Return the torch module, which accepts data: tensors in, tensors out, integers converted to floats."""
        if isinstance(self.module, Kernel):
            self.module.outermost = True
        return self.module

    def regularizers(self) -> list[tuple[str, float, float]]:
        """Return `(name among the module's parameters, l1, l2)` for every weight with a regularizer."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return [
            (names[id(layer.module._parameters[key])], weight.regularizer.l1, weight.regularizer.l2)
            for layer in self.walk()
            for key, weight in layer._weights.items()
            if weight.regularizer is not None and id(layer.module._parameters[key]) in names
        ]

    def walk(self) -> Iterator[Layer]:
        """Yield this layer and all layers inside, each once."""
        seen: set[int] = set()

        def visit(layer: Layer) -> Iterator[Layer]:
            if id(layer) not in seen:
                seen.add(id(layer))
                yield layer
                for child in layer._children.values():
                    yield from visit(child)

        return visit(self)

    def named(self) -> dict[str, Layer]:
        """Return this layer and all layers inside by name; raise if two have the same name."""
        table: dict[str, Layer] = {}
        for layer in self.walk():
            if layer.name() in table:
                raise ArgumentError(
                    f"Two layers are named {layer.name()!r}. Give each a name of its own with set_name()."
                )
            table[layer.name()] = layer
        return table

    def find(self, name: str) -> Layer:
        """Return the layer with a name."""
        table = self.named()
        if name not in table:
            raise ArgumentError(f"No layer is named {name!r}.{suggest(name, table) or f' Layers: {listed(table)}.'}")
        return table[name]

    # Names and graphs

    def __call__(self, x: Any = None) -> Node:
        """Return a node of a graph: this layer applied to the outputs of other nodes.

        Args:
            x: A node or a list of nodes; none makes this an input of the graph.
        """
        return Node(self, [] if x is None or (isinstance(x, list | tuple) and not x) else nodes(x))

    def set_name(self, name: str) -> Self:
        """Set the name of this layer.

        Args:
            name: The name; layers of one model need different ones.

        Returns:
            This layer.
        """
        self._name = check_text("name", name)
        return self

    def name(self) -> str:
        """Return the name of this layer."""
        return self._name

    def set_seed(self, seed: int = 123) -> Self:
        """Restart the stream from which all layers draw their first weights."""
        RNG().set_seed(seed)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{self._name}]"

    # Weights

    def weight_parameters(self) -> list[nn.Parameter]:
        """Return the parameters in the order of `get_weights`."""
        own = [self.module._parameters[key] for key in self._weights]
        return [p for p in own if p is not None] + [p for c in self._children.values() for p in c.weight_parameters()]

    def get_weights(self) -> list[Any] | None:
        """Return the weights as arrays in BigDL's order and layout; None if there are none."""
        parameters = self.weight_parameters()
        if not parameters:
            print("The layer does not have weight/bias")
            return None
        return [parameter.detach().numpy().copy() for parameter in parameters]

    def set_weights(self, weights: Any) -> Self:
        """Set all weights.

        Args:
            weights: A list of arrays, as many as `get_weights` returns, each with as many values. Another shape with
                the same number of values is accepted with a warning.

        Returns:
            This layer.
        """
        arrays = [np.asarray(value) for value in (weights if isinstance(weights, list | tuple) else [weights])]
        parameters = self.weight_parameters()
        if len(arrays) != len(parameters):
            raise ArgumentError(
                f"set_weights received {len(arrays)} arrays; {self!r} has {len(parameters)} weights"
                + (f" of shapes {[tuple(p.shape) for p in parameters]}." if parameters else ".")
            )
        for index, (array, parameter) in enumerate(zip(arrays, parameters, strict=True)):
            if array.size != parameter.numel() or array.dtype.kind not in "fiub":
                raise ArgumentError(
                    f"set_weights received shape {array.shape} and dtype {array.dtype} for weight {index} of {self!r}; "
                    f"expected numbers of shape {tuple(parameter.shape)}."
                )
            if array.shape != tuple(parameter.shape):
                warnings.warn(
                    f"set_weights received shape {array.shape} for weight {index} of {self!r}, which has shape "
                    f"{tuple(parameter.shape)}; the values are used in their order.",
                    stacklevel=2,
                )
        with torch.no_grad():
            for array, parameter in zip(arrays, parameters, strict=True):
                parameter.copy_(torch.tensor(array, dtype=parameter.dtype).reshape(parameter.shape))
        return self

    def is_with_weights(self) -> bool:
        """Whether this layer has weights."""
        return bool(self.weight_parameters())

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Return `{layer name: {"weight": …, "bias": …, "gradWeight": …, "gradBias": …}}` for layers with weights."""
        table = {}
        for name, layer in self.named().items():
            entry = layer._entry()
            if entry:
                table[name] = entry
        return table

    def _entry(self) -> dict[str, Any]:
        entry = {}
        for key in self._weights:
            parameter = self.module._parameters[key]
            assert parameter is not None
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            entry[key] = parameter.detach().numpy().copy()
            entry[grad_key(key)] = grad.numpy().copy()
        return entry

    def reset(self) -> Self:
        """Draw all weights again."""
        with torch.no_grad():
            for key, weight in self._weights.items():
                parameter = self.module._parameters[key]
                if parameter is not None and weight.value is None:
                    parameter.copy_(torch.from_numpy(weight.first()))
        for child in self._children.values():
            child.reset()
        return self

    def set_init_method(self, weight_init_method: Any = None, bias_init_method: Any = None) -> Self:
        """Set how weights are drawn, and draw them at once.

        Args:
            weight_init_method: An initialization method such as `Xavier()`.
            bias_init_method: The same for the bias.

        Returns:
            This layer.
        """
        for name, method in (("weight_init_method", weight_init_method), ("bias_init_method", bias_init_method)):
            if method is not None and not isinstance(method, InitializationMethod):
                raise ArgumentError(f"{name}={shown(method)}: expected an initialization method, such as Xavier().")
        for weight in self._weights.values():
            method = bias_init_method if weight.name == "bias" else weight_init_method
            weight.method = method if method is not None else weight.method
        return self.reset()

    def setWRegularizer(self, wRegularizer: L1L2Regularizer) -> Self:
        """Set the regularizer of the weight."""
        return self._set_regularizer("wRegularizer", wRegularizer, bias=False)

    def setBRegularizer(self, bRegularizer: L1L2Regularizer) -> Self:
        """Set the regularizer of the bias."""
        return self._set_regularizer("bRegularizer", bRegularizer, bias=True)

    def _set_regularizer(self, name: str, regularizer: L1L2Regularizer, bias: bool) -> Self:
        if not isinstance(regularizer, L1L2Regularizer):
            raise ArgumentError(f"{name}={shown(regularizer)}: expected a regularizer, such as L2Regularizer(1e-4).")
        for weight in self._weights.values():
            if (weight.name == "bias") == bias:
                weight.regularizer = regularizer
        return self

    # Modes

    def freeze(self, names: Any = None) -> Self:
        """Exclude weights from training.

        Args:
            names: The names of the layers inside; all by default.

        Returns:
            This layer.
        """
        return self._set_trainable(names, False)

    def unfreeze(self, names: Any = None) -> Self:
        """Include weights in training again.

        Args:
            names: The names of the layers inside; all by default.

        Returns:
            This layer.
        """
        return self._set_trainable(names, True)

    def _set_trainable(self, names: Any, trainable: bool) -> Self:
        chosen = [names] if isinstance(names, str) else names
        layers = [self] if chosen is None else [self.find(check_text("names", name)) for name in chosen]
        for layer in layers:
            for parameter in layer.module.parameters():
                parameter.requires_grad_(trainable)
        return self

    def training(self, is_training: bool = True) -> Self:
        """Set training mode, or evaluation mode with `is_training=False`."""
        self.module.train(check_flag("is_training", is_training))
        return self

    def is_training(self) -> bool:
        """Whether the layer is in training mode."""
        return bool(self.module.training)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Set evaluation mode; with a data set, a batch size and validation methods, evaluate on the data."""
        if not args and not kwargs:
            self.module.eval()
            return self
        return act("evaluate", self, *args, **kwargs)

    def update_parameters(self, learning_rate: float) -> None:
        """Subtract the gradients times a learning rate from the weights."""
        check_number("learning_rate", learning_rate)
        with torch.no_grad():
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter -= learning_rate * parameter.grad

    def zero_grad_parameters(self) -> None:
        """Set all gradients to 0."""
        for parameter in self.module.parameters():
            parameter.grad = None

    # Files

    def saveModel(self, modelPath: str, weightPath: str | None = None, over_write: bool = False) -> None:
        """Save this layer with its weights, for `Model.loadModel`.

        Args:
            modelPath: The file.
            weightPath: A file of its own for the weights.
            over_write: Whether existing files are replaced.
        """
        act("save", self, modelPath, weightPath, over_write)

    def save(self, path: str, over_write: bool = False) -> None:
        """Save this layer with its weights in one file, for `Model.load`."""
        self.saveModel(path, None, over_write)

    # Actions of the public package

    def predict(self, features: Any, batch_size: int = -1) -> Any:
        """Return the outputs for rows: an array or a list of arrays, or an RDD of Sample."""
        return act("predict", self, features, batch_size)

    def predict_class(self, features: Any) -> Any:
        """Return the predicted class of each row, counted from 1."""
        return act("predict_class", self, features)

    def predict_local(self, X: Any, batch_size: int = -1) -> Any:
        """Return the outputs for the rows of arrays."""
        return act("predict", self, X, batch_size)

    def predict_class_local(self, X: Any) -> Any:
        """Return the predicted class of each row of arrays, counted from 1."""
        return act("predict_class", self, X)

    def predict_distributed(self, data_rdd: Any, batch_size: int = -1) -> Any:
        """Return the outputs for an RDD of Sample as an RDD."""
        return act("predict", self, data_rdd, batch_size)

    def predict_class_distributed(self, data_rdd: Any) -> Any:
        """Return the predicted classes for an RDD of Sample as an RDD, counted from 1."""
        return act("predict_class", self, data_rdd)

    def __getstate__(self) -> dict[str, Any]:
        # The trail of the last forward() holds a graph of torch, which cannot be copied.
        return {**self.__dict__, "_trail": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return twin
