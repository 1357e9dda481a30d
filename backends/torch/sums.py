"""Sums over the ranks of a torch process group: on the CPU in rank order, and in few rounds.

A ring sums in an order that depends on a value's position in the message, and DDP changes its messages after the first
step: with three or more ranks, a resumed run would differ in the last bit. A ring also takes two rounds per rank. Two
ranks that exchange everything need one round for the same bytes, and for small messages the same pays off with more.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.distributed as dist

WIRE_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_SMALL = 512 << 10
"""Size in bytes up to which all ranks exchange whole tensors, however many ranks there are."""


def sum_over_ranks(flat: torch.Tensor, wire: torch.dtype | None = None) -> None:
    """Sum a flat tensor over all ranks, in place; `wire` is the dtype that is sent."""
    exchange = _begin(flat, wire)
    if exchange is not None:
        work, sent, received = exchange
        work.wait()
        _finish(flat, sent, received)


def average_bucket(wire: torch.dtype | None, bucket: Any) -> Any:
    """Average one bucket of gradients, as a DDP communication hook that overlaps with the backward pass."""
    flat = bucket.buffer()
    exchange = _begin(flat, wire)
    if exchange is None:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(flat.div_(dist.get_world_size()))
        return done
    work, sent, received = exchange
    return work.get_future().then(lambda _: _finish(flat, sent, received).div_(dist.get_world_size()))


average_bucket.__annotations__.clear()  # DDP reads them and does not support postponed annotations


def _begin(flat: torch.Tensor, wire: torch.dtype | None) -> tuple[Any, torch.Tensor, torch.Tensor] | None:
    """Start sending the whole tensor to all ranks; return None if the sum is already complete in another way."""
    world = dist.get_world_size()
    if flat.device.type != "cpu" and wire is None:
        dist.all_reduce(flat)
        return None
    if world > 2 and flat.nbytes > _SMALL:
        _sum_in_two_rounds(flat, world, wire)
        return None
    sent = flat if wire is None else flat.to(wire)
    size = flat.numel()
    if world == 2:
        received = torch.empty_like(sent)
        sizes = _to_the_other(size)
        return dist.all_to_all_single(received, sent, sizes, sizes, async_op=True), sent, received
    received = torch.empty(world * size, dtype=sent.dtype, device=sent.device)
    return dist.all_to_all_single(received, sent.repeat(world), async_op=True), sent, received.view(world, size)


def _finish(flat: torch.Tensor, sent: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """Sum the received parts, with this rank's part as it was sent, so that all ranks have the same sum."""
    if received.shape == sent.shape:
        return torch.add(sent.to(flat.dtype), received.to(flat.dtype), out=flat)
    return flat.copy_(_in_order(received, flat.dtype))


def _in_order(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum the ranks' parts in rank order and in full precision."""
    return functools.reduce(lambda total, part: total.add_(part), parts[1:], parts[0].to(dtype, copy=True))


def _sum_in_two_rounds(flat: torch.Tensor, world: int, wire: torch.dtype | None) -> None:
    """Have every rank sum an equal part and send its sum to all: as many bytes as a ring."""
    size = math.ceil(flat.numel() / world)
    sent = torch.zeros(size * world, dtype=wire or flat.dtype, device=flat.device)
    sent[: flat.numel()] = flat
    all_gather(sent, own_part_of_sum(sent, world, flat.dtype).to(sent.dtype))
    flat.copy_(sent[: flat.numel()])


def own_part_of_sum(sent: torch.Tensor, world: int, dtype: torch.dtype) -> torch.Tensor:
    """Return this rank's equal part of the sum over all ranks."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return _in_order(received.view(world, -1), dtype)


def all_gather(out: torch.Tensor, own: torch.Tensor) -> None:
    """Gather every rank's tensor into `out`, in rank order."""
    world, size = dist.get_world_size(), own.numel()
    if out.device.type == "cpu" and world == 2:
        # Faster than gloo's all-gather, with the same bytes sent.
        mine, other = out.chunk(2) if dist.get_rank() == 0 else reversed(out.chunk(2))
        mine.copy_(own)
        sizes = _to_the_other(size)
        dist.all_to_all_single(other, mine, sizes, sizes)
        return
    # torch 2.13 renamed the function and warns about the old name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(out, own.contiguous())


def _to_the_other(size: int) -> list[int]:
    """Return the split sizes between two ranks: nothing to itself, everything to the other."""
    return [0, size] if dist.get_rank() == 0 else [size, 0]
