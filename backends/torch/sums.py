"""Sums over the ranks of a torch process group: on the CPU in the order of the ranks, and in as few rounds as pay.

A ring adds up in an order that depends on where in the message a number stands, and DDP changes its messages after
the first step: from three ranks on, a resumed run would differ in the last bit. It also takes two rounds per rank.
Two ranks that send each other everything need one round for the same bytes, and a little more is soon sent to many.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.distributed as dist

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
_SMALL = 512 << 10
"""Bytes up to which everybody sends everything to everybody, however many they are."""


def sum_up(flat: torch.Tensor, wire: torch.dtype | None = None) -> None:
    """Sum a flat tensor over all ranks, in place; `wire` is the type that travels."""
    begun = _begin(flat, wire)
    if begun is not None:
        work, sent, received = begun
        work.wait()
        _finish(flat, sent, received)


def average_bucket(wire: torch.dtype | None, bucket: Any) -> Any:
    """DDP's communication of one bucket of gradients; while it is on its way the backward pass goes on."""
    flat = bucket.buffer()
    begun = _begin(flat, wire)
    if begun is None:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(flat.div_(dist.get_world_size()))
        return done
    work, sent, received = begun
    return work.get_future().then(lambda _: _finish(flat, sent, received).div_(dist.get_world_size()))


average_bucket.__annotations__.clear()  # DDP reads them and does not understand postponed ones


def _begin(flat: torch.Tensor, wire: torch.dtype | None) -> tuple[Any, torch.Tensor, torch.Tensor] | None:
    """Send everything to everybody, to be waited for; None if the sum is made already, in another way."""
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
    """Add up what has come; the own part as it was sent, so that all ranks have the same sum."""
    if received.shape == sent.shape:
        return torch.add(sent.to(flat.dtype), received.to(flat.dtype), out=flat)
    return flat.copy_(_in_order(received, flat.dtype))


def _in_order(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum of the ranks' parts, added up in their order and in full precision."""
    return functools.reduce(lambda total, part: total.add_(part), parts[1:], parts[0].to(dtype, copy=True))


def _sum_in_two_rounds(flat: torch.Tensor, world: int, wire: torch.dtype | None) -> None:
    """Every rank adds up an equal part and sends its sum to all: as many bytes as a ring."""
    size = math.ceil(flat.numel() / world)
    sent = torch.zeros(size * world, dtype=wire or flat.dtype, device=flat.device)
    sent[: flat.numel()] = flat
    all_gather(sent, own_part_of_sum(sent, world, flat.dtype).to(sent.dtype))
    flat.copy_(sent[: flat.numel()])


def own_part_of_sum(sent: torch.Tensor, world: int, dtype: torch.dtype) -> torch.Tensor:
    """This rank's equal part of the sum over all ranks."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return _in_order(received.view(world, -1), dtype)


def all_gather(out: torch.Tensor, own: torch.Tensor) -> None:
    """Every rank's tensor, one after the other."""
    world, size = dist.get_world_size(), own.numel()
    if out.device.type == "cpu" and world == 2:
        # Gloo's own gathering takes longer than this, which moves no other bytes.
        mine, other = out.chunk(2) if dist.get_rank() == 0 else reversed(out.chunk(2))
        mine.copy_(own)
        sizes = _to_the_other(size)
        dist.all_to_all_single(other, mine, sizes, sizes)
        return
    # The name changed with torch 2.13; the old one warns there.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(out, own.contiguous())


def _to_the_other(size: int) -> list[int]:
    """For two ranks: nothing to itself, everything to the other."""
    return [0, size] if dist.get_rank() == 0 else [size, 0]
