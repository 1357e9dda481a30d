"""Batch norm over the rows of all ranks, on any device and with any `Sync`; torch's own needs CUDA and NCCL."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from orca.backends.torch.sync import Sync

_sync: Sync = Sync()
_filler = False


def use(sync: Sync, filler: bool) -> None:
    """Set the ranks that the next forward pass synchronizes with, and whether its rows are filler."""
    global _sync, _filler
    _sync, _filler = sync, filler


def forget() -> None:
    """Let go of the ranks, whose sockets would stay open in a process that outlives its gang."""
    use(Sync(), False)


class GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):  # type: ignore[misc]
    """Normalizes by the mean and variance over the rows of all ranks; its state has torch's own names."""

    def _check_input_dim(self, x: torch.Tensor) -> None:
        return None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or _sync.world == 1:
            return super().forward(x)
        others = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        counts = 0.0 if _filler else 1.0
        dtype, x = x.dtype, x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        own = torch.tensor([counts * x.numel() / x.shape[1]], dtype=x.dtype, device=x.device)
        sums = _sync.sum_through(torch.cat([x.sum(others) * counts, own]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        # A second reduction, because the mean of squares loses digits when the mean is far from zero.
        centred = x - mean.view(shape)
        variance = _sync.sum_through((centred**2).sum(others) * counts) / count
        if self.track_running_stats and self.running_mean is not None:
            self._update_statistics(mean.detach(), variance.detach(), float(count))
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(dtype)

    def _update_statistics(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
            unbiased = variance * count / max(count - 1, 1)
            self.running_mean.mul_(1 - share).add_(mean * share)
            self.running_var.mul_(1 - share).add_(unbiased * share)


def convert(model: nn.Module) -> nn.Module:
    """Replace each batch norm in a model with one over all ranks; parameters and buffers stay the same objects."""
    if isinstance(model, nn.modules.batchnorm._BatchNorm) and not isinstance(model, GlobalBatchNorm):
        layer: Any = GlobalBatchNorm(
            model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats
        )
        layer._parameters, layer._buffers, layer.training = model._parameters, model._buffers, model.training
        return layer
    for name, child in model.named_children():
        setattr(model, name, convert(child))
    return model
