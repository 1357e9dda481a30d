"""Conversion between arrays and tensors; a BigDL "table" is a list of them, possibly nested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from orca.backends.bigdl.samples import JTensor
from orca.core.arguments import shown
from orca.errors import DataError


def to_tensors(value: Any, name: str = "input") -> Any:
    """Convert an array, or nested lists of arrays, to float32 tensors that do not share memory with them."""
    if isinstance(value, list | tuple):
        if not value:
            raise DataError(f"The {name} is an empty list; expected at least one array.")
        return [to_tensors(item, name) for item in value]
    if isinstance(value, JTensor):
        value = value.to_ndarray()
    if not isinstance(value, np.ndarray | np.generic | torch.Tensor):
        raise DataError(f"The {name} is {shown(value)}; expected a numpy array, a JTensor or a list of these.")
    array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise DataError(f"The {name} has dtype {array.dtype}; expected numbers.")
    return torch.tensor(array, dtype=torch.float32)


def to_arrays(value: Any) -> Any:
    """Convert tensors, or nested lists of them, to arrays."""
    if isinstance(value, list | tuple):
        return [to_arrays(item) for item in value]
    return value.detach().numpy()


def leaves(value: Any) -> list[Any]:
    """Return the tensors of nested lists in order."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def each(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to every tensor of nested lists."""
    if isinstance(value, list | tuple):
        return [each(function, item) for item in value]
    return function(value)


def floats(value: Any) -> Any:
    """Convert integer tensors to floats: BigDL's layers compute with floats, indices included."""
    return each(lambda tensor: tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype()), value)
