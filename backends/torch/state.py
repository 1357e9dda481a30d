"""Torch state as plain trees of numpy arrays and back, so that driver and files need no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_HALF = "torch.bfloat16"


def to_plain(tree: Any) -> Any:
    """Turn tensors into arrays (copies), the containers into dicts and lists.

    Keys that are not text, such as the optimizer's parameter numbers, keep their type by a mark.
    """
    if isinstance(tree, torch.Tensor):
        tensor = tree.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            return {_HALF: tensor.view(torch.int16).numpy().copy()}
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
    """The reverse of `to_plain`."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree.copy())
    if isinstance(tree, dict):
        if set(tree) == {_HALF}:
            return torch.from_numpy(tree[_HALF].copy()).view(torch.bfloat16)
        if set(tree) == {"torch.items"}:
            return {key: to_torch(value) for key, value in tree["torch.items"]}
        if set(tree) == {"torch.tuple"}:
            return tuple(to_torch(value) for value in tree["torch.tuple"])
        return {key: to_torch(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [to_torch(value) for value in tree]
    return tree
