"""Conversion of arrays to tensors and back, shared by all torch code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from orca.errors import DataError
from orca.shards.checks import check_unsigned


def tensor(array: Any) -> torch.Tensor:
    """Convert an array of numbers to a tensor, sharing its memory if that is writable."""
    array = np.asarray(array)
    if array.dtype == object or array.dtype.kind in "USMmV" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        raise DataError(f"An array of dtype {array.dtype} cannot become a tensor. Convert it to numbers first.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        check_unsigned(array, "An array")
        array = array.astype(np.int64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def feature(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Convert an array to a model input.

    Bytes are pixels or flags, which layers expect as floats; wider integers may be indices and stay integers.
    """
    value = tensor(array)
    if value.is_floating_point() or value.dtype in (torch.uint8, torch.int8, torch.bool):
        value = value.to(dtype)
    return value


def arrays(tree: Any) -> Any:
    """Convert outputs to arrays, in the model's own structure; nothing is squeezed."""
    if isinstance(tree, torch.Tensor):
        value = tree.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if hasattr(tree, "_asdict"):
        return {key: arrays(value) for key, value in tree._asdict().items()}
    if isinstance(tree, dict):
        return {key: arrays(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(arrays(value) for value in tree)
    raise DataError(f"The model returned a {type(tree).__name__}; expected tensors, or tuples or dicts of them.")


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return all tensors of a nested output."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in tensors_of(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in tensors_of(value)]
    return []


def first_length(tree: Any) -> int:
    """Return the number of rows of a tree of tensors."""
    return int(tensors_of(tree)[0].shape[0])


def float_type(model: nn.Module) -> torch.dtype:
    """Return the dtype of a model's floating-point parameters."""
    return next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.get_default_dtype())
