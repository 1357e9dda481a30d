"""Arrays into tensors and back: the rules that every torch path shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from orca.errors import DataError


def tensor(array: Any) -> torch.Tensor:
    """An array of numbers as a tensor, sharing its memory where that may be written."""
    array = np.asarray(array)
    if array.dtype == object or array.dtype.kind in "USMm":
        raise DataError(f"An array of dtype {array.dtype} cannot become a tensor. Convert it to numbers first.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def feature(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """A model's input. Bytes are pixels or flags, which layers want as floats; wider integers may be indices."""
    made = tensor(array)
    if made.is_floating_point() or made.dtype in (torch.uint8, torch.int8, torch.bool):
        made = made.to(dtype)
    return made


def arrays(tree: Any) -> Any:
    """Outputs as arrays, in the model's own structure; nothing is squeezed."""
    if isinstance(tree, torch.Tensor):
        made = tree.detach().cpu()
        return (made.float() if made.dtype == torch.bfloat16 else made).numpy()
    if hasattr(tree, "_asdict"):
        return {key: arrays(value) for key, value in tree._asdict().items()}
    if isinstance(tree, dict):
        return {key: arrays(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(arrays(value) for value in tree)
    raise DataError(f"The model returned a {type(tree).__name__}; expected tensors, or tuples or dicts of them.")


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """All tensors of a nested output."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [found for value in tree.values() for found in tensors_of(value)]
    if isinstance(tree, list | tuple):
        return [found for value in tree for found in tensors_of(value)]
    return []


def first_length(tree: Any) -> int:
    """The rows of a tree of tensors."""
    return int(tensors_of(tree)[0].shape[0])


def float_type(model: nn.Module) -> torch.dtype:
    """The type of a model's own numbers."""
    return next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.get_default_dtype())
