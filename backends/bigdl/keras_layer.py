"""The base of layers in the style of Keras 1: the shape of the input is known when the weights are drawn."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl import initialization
from orca.backends.bigdl.activations import activation_of
from orca.backends.bigdl.container import Sequential
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.node import Node
from orca.core.arguments import check_choice, shown
from orca.errors import ArgumentError, DataError, listed, suggest

Shape = Any
"""The shape of a row, a tuple in which None stands for any size, or a list of such tuples."""

_INITIAL: dict[str, Any] = {
    "glorot_uniform": initialization.Xavier,
    "uniform": lambda: initialization.RandomUniform(-0.05, 0.05),
    "normal": lambda: initialization.RandomNormal(0.0, 0.05),
    "zero": initialization.Zeros,
    "one": initialization.Ones,
    "he_normal": lambda: initialization.MsraFiller(False),
}
_PROBES = (16, 17)


def check_shape(name: str, value: Any) -> Shape:
    """Return the shape of a row, or a list of shapes."""
    if value is None:
        return None
    if isinstance(value, list) and value and all(isinstance(item, list | tuple) for item in value):
        return [check_shape(name, item) for item in value]
    sizes = value if isinstance(value, list | tuple) else [value]
    if any(size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1) for size in sizes):
        raise ArgumentError(f"{name}={shown(value)}: expected the shape of a row, such as (28, 28).")
    return tuple(sizes)


def initial(value: Any, name: str = "init") -> initialization.InitializationMethod:
    """Return an initialization method, which may be its name in Keras."""
    if isinstance(value, initialization.InitializationMethod):
        return value
    if isinstance(value, str) and value in _INITIAL:
        method: initialization.InitializationMethod = _INITIAL[value]()
        return method
    hint = suggest(str(value), _INITIAL) or f" Known: {listed(_INITIAL)}."
    raise ArgumentError(f"{name}={shown(value)} is not an initialization method.{hint}")


def channels_last(value: Any) -> bool:
    """Return whether an ordering of dimensions has the channels last."""
    return check_choice("dim_ordering", value, ("th", "tf")) == "tf"


def same(value: Any) -> bool:
    """Return whether a border mode keeps the size."""
    return check_choice("border_mode", value, ("valid", "same")) == "same"


class KerasNode(Node):
    """A node of a graph that knows the shape of its output."""

    def __init__(self, layer: Any, previous: list[Node], shape: Shape) -> None:
        super().__init__(layer, previous)
        self.shape = shape


class KerasLayer(Layer):
    """A layer whose inner layer is created as soon as the shape of its input is known.

    A subclass returns the inner layer in `make`.
    """

    style = "keras"
    activation: Any = None

    def __init__(self, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__()
        self.input_shape = check_shape("input_shape", input_shape)
        self.output_shape: Shape = None
        self.labor: Layer | None = None
        if name is not None:
            self.set_name(name)

    def make(self, shape: Shape) -> Layer:
        """Return the inner layer for the shape of a row."""
        raise NotImplementedError

    def build(self, shape: Shape) -> Shape:
        """Create the inner layer for the shape of a row, once, and return the shape of the output."""
        if self.input_shape is not None and not _fits(self.input_shape, shape):
            raise ArgumentError(f"{self!r} expects rows of shape {self.input_shape}; it would receive {shape}.")
        if self.labor is None:
            labor = self.make(shape)
            if self.activation is not None:
                labor = Sequential().add(labor).add(activation_of(self.activation))
            self.labor = self.attach("labor", labor)
            self.input_shape = shape
        self.output_shape = probed(self, shape)
        return self.output_shape

    def get_input_shape(self) -> Shape:
        """Return the shape of the input with None for the batch."""
        return _batched(self.input_shape)

    def get_output_shape(self) -> Shape:
        """Return the shape of the output with None for the batch."""
        return _batched(self.output_shape)

    def compute(self, x: Any) -> Any:
        if self.labor is None:
            self.build([tuple(t.shape[1:]) for t in x] if isinstance(x, list) else tuple(x.shape[1:]))
        assert self.labor is not None
        return self.labor.module(x)

    def __call__(self, x: Any = None) -> KerasNode:
        """Return a node of a graph: this layer applied to the outputs of other nodes.

        Args:
            x: A node of `Input` or of another layer, or a list of nodes.
        """
        sources = list(x) if isinstance(x, list | tuple) else [x]
        for source in sources:
            if not isinstance(source, KerasNode):
                raise ArgumentError(
                    f"x={shown(source)}: expected a node, which Input(shape=…) and calling a layer return."
                )
        shapes = [source.shape for source in sources]
        return KerasNode(self, sources, self.build(shapes if len(shapes) > 1 else shapes[0]))


def _batched(shape: Shape) -> Shape:
    if shape is None:
        return None
    return [_batched(item) for item in shape] if isinstance(shape, list) else (None, *shape)


def _fits(expected: Shape, shape: Shape) -> bool:
    if isinstance(expected, list) or isinstance(shape, list):
        return isinstance(expected, list) and isinstance(shape, list) and len(expected) == len(shape)
    return len(expected) == len(shape) and all(
        a is None or b is None or a == b for a, b in zip(expected, shape, strict=True)
    )


def probed(layer: Layer, shape: Shape) -> Shape:
    """Return the shape of the output of a layer for rows of a shape, by running it on zeros."""
    unknown = any(size is None for item in (shape if isinstance(shape, list) else [shape]) for size in item)
    results = [_run(layer, shape, size) for size in (_PROBES if unknown else _PROBES[:1])]
    return _common(results)


def _run(layer: Layer, shape: Shape, size: int) -> Shape:
    def zeros(item: Any) -> torch.Tensor:
        return torch.zeros(2, *(size if entry is None else entry for entry in item))

    training = layer.module.training
    layer.module.eval()
    try:
        with torch.no_grad():
            value = layer.compute([zeros(item) for item in shape] if isinstance(shape, list) else zeros(shape))
    except RuntimeError as error:
        raise DataError(f"{layer!r} cannot take rows of shape {shape}: {str(error).splitlines()[0]}") from None
    finally:
        layer.module.train(training)
    return [tuple(t.shape[1:]) for t in value] if isinstance(value, list) else tuple(value.shape[1:])


def _common(results: list[Shape]) -> Shape:
    first, *others = results
    if isinstance(first, list):
        return [_common([result[i] for result in results]) for i in range(len(first))]
    return tuple(size if all(other[i] == size for other in others) else None for i, size in enumerate(first))
