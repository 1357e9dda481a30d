"""Lets torch's own optimizers update all weights in one pass, which torch does by itself on GPUs only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_KNOWN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_TYPES = (torch.float32, torch.float64)


def fuse(model: nn.Module, optimizer: Any) -> bool:
    """Turn it on where it gives the same result and the user has not chosen otherwise; return whether it is on."""
    if type(optimizer) not in _KNOWN or any(getattr(layer, "sparse", False) for layer in model.modules()):
        return False
    for group in optimizer.param_groups:
        if any(group.get(name) for name in ("foreach", "fused", "capturable", "differentiable")):
            return False
        if any(type(v) is not nn.Parameter or v.device.type != "cpu" or v.dtype not in _TYPES for v in group["params"]):
            return False
    for group in optimizer.param_groups:
        group["fused"] = True
    return True


def as_given(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state without that, for whoever loads it elsewhere."""
    groups = [{**group, "fused": None} for group in state["param_groups"]]
    return {**state, "param_groups": groups}
