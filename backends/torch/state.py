"""Converts torch state to plain trees of numpy arrays and back, so that driver and files need no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_BFLOAT16 = "torch.bfloat16"


def to_plain(tree: Any) -> Any:
    """Convert tensors to arrays (copies) and containers to dicts and lists.

    Dicts with keys other than strings, such as the optimizer's parameter numbers, are stored as marked lists of items.
    """
    if isinstance(tree, torch.Tensor):
        tensor = tree.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            return {_BFLOAT16: tensor.view(torch.int16).numpy().copy()}
        return tensor.numpy().copy()
    if isinstance(tree, dict):
        if all(isinstance(key, str) for key in tree):
            return {key: to_plain(value) for key, value in tree.items()}
        return {"torch.items": [[key, to_plain(value)] for key, value in tree.items()]}
    if isinstance(tree, tuple):
        return {"torch.tuple": [to_plain(value) for value in tree]}
    if isinstance(tree, list):
        return [to_plain(value) for value in tree]
    return tree


def to_torch(tree: Any) -> Any:
    """Reverse `to_plain`."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree.copy())
    if isinstance(tree, dict):
        if set(tree) == {_BFLOAT16}:
            return torch.from_numpy(tree[_BFLOAT16].copy()).view(torch.bfloat16)
        if set(tree) == {"torch.items"}:
            return {key: to_torch(value) for key, value in tree["torch.items"]}
        if set(tree) == {"torch.tuple"}:
            return tuple(to_torch(value) for value in tree["torch.tuple"])
        return {key: to_torch(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [to_torch(value) for value in tree]
    return tree
