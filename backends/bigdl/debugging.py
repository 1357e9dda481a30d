"""Running one layer on arrays: forward and backward, as one does to look at what a layer computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from orca.backends.bigdl.tables import leaves, to_arrays, to_tensors
from orca.errors import DataError


class _Mode:
    own_stream = False


@contextlib.contextmanager
def _own_stream() -> Iterator[None]:
    previous, _Mode.own_stream = _Mode.own_stream, True
    try:
        yield
    finally:
        _Mode.own_stream = previous


def uses_own_stream() -> bool:
    """Whether random layers draw from BigDL's stream: only in `forward` on arrays; training uses torch's generator."""
    return _Mode.own_stream


class Debugging:
    """`forward` and `backward` on arrays."""

    module: nn.Module
    _trail: Any

    def forward(self, input: Any) -> Any:
        """Return the output for an array, a JTensor, or nested lists of these.

        Args:
            input: One row or a batch, as the layer takes it.

        Returns:
            An array, or a list of arrays.
        """
        tensors = to_tensors(input)
        for leaf in leaves(tensors):
            leaf.requires_grad_(True)
        with _own_stream(), torch.enable_grad():
            output = self.module(tensors)
        self._trail = (tensors, output)
        return to_arrays(output)

    def backward(self, input: Any, grad_output: Any) -> Any:
        """Return the gradient of the input, and add those of the weights to `gradWeight` and `gradBias`.

        Args:
            input: The input of the last `forward`, whose random choices apply here too.
            grad_output: The gradient of the output, in the structure of the output.

        Returns:
            An array, or a list of arrays.
        """
        if self._trail is None or not _equal(self._trail[0], to_tensors(input)):
            self.forward(input)
        tensors, output = self._trail
        outputs, grads = leaves(output), leaves(to_tensors(grad_output, "gradient"))
        if [tuple(o.shape) for o in outputs] != [tuple(g.shape) for g in grads]:
            raise DataError(
                f"The gradient has the shapes {[tuple(g.shape) for g in grads]}; the output has "
                f"{[tuple(o.shape) for o in outputs]}."
            )
        weights = [weight for weight in self.module.parameters() if weight.requires_grad]
        inputs = leaves(tensors)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
        every = torch.autograd.grad(
            [o for o, _ in pairs], inputs + weights, [g for _, g in pairs], retain_graph=True, allow_unused=True
        )
        for weight, grad in zip(weights, every[len(inputs) :], strict=True):
            if grad is not None:
                weight.grad = grad if weight.grad is None else weight.grad + grad
        values = iter(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, every, strict=False))
        return _rebuilt(tensors, values)


def _equal(one: Any, other: Any) -> bool:
    first, second = leaves(one), leaves(other)
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, list):
        return [_rebuilt(item, values) for item in tree]
    return next(values).numpy()
