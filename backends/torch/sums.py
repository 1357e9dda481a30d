"""Sums over the ranks of a torch process group: small ones in one round, and in rank order where messages may change.

A ring sums in an order that depends on a value's position in the message: with three or more ranks it repeats a sum bit
for bit only if the message is laid out as before. It also takes two rounds per rank, where ranks that exchange whole
tensors need one. That is as many bytes for two ranks, and pays off for small messages with more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

WIRE_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
SMALL = 512 << 10
"""Size in bytes up to which all ranks exchange whole tensors, however many ranks there are."""


class Sum:
    """A sum over all ranks that has been started."""

    def __init__(self, work: Any, finish: Callable[[], object] | None = None) -> None:
        self._work, self._finish = work, finish

    def wait(self) -> None:
        """Wait until the tensor holds the sum."""
        self._work.wait()
        if self._finish is not None:
            self._finish()


def sum_over_ranks(flat: torch.Tensor, wire: torch.dtype | None = None) -> None:
    """Sum a flat tensor over all ranks, in place and in rank order; `wire` is the dtype that is sent."""
    if flat.device.type != "cpu" and wire is None:
        dist.all_reduce(flat)
        return
    _exchange(flat, wire, None).wait()


def start_sum(flat: torch.Tensor, wire: torch.dtype | None = None, group: Any = None) -> Sum:
    """Start to sum a flat tensor over all ranks, in place.

    A large tensor is summed in a ring, in an order that depends on the position: it must always hold the same numbers.
    """
    if wire is None and (flat.device.type != "cpu" or flat.nbytes > SMALL):
        return Sum(dist.all_reduce(flat, group=group, async_op=True))
    return _exchange(flat, wire, group)


def _exchange(flat: torch.Tensor, wire: torch.dtype | None, group: Any) -> Sum:
    """Start sending tensors, or parts of them, from all ranks to all ranks, which then sum in rank order."""
    world, size = dist.get_world_size(), flat.numel()
    sent = flat if wire is None else flat.to(wire)
    if world == 2:
        received = torch.empty_like(sent)
        sizes = _to_the_other(size)
        work = dist.all_to_all_single(received, sent, sizes, sizes, group=group, async_op=True)
        return Sum(work, lambda: torch.add(sent.to(flat.dtype), received.to(flat.dtype), out=flat))
    if flat.nbytes <= SMALL:
        received = torch.empty(world * size, dtype=sent.dtype, device=sent.device)
        work = dist.all_to_all_single(received, sent.repeat(world), group=group, async_op=True)
        return Sum(work, lambda: flat.copy_(_in_order(received.view(world, size), flat.dtype)))
    # Two rounds, with as many bytes as a ring: every rank sums an equal part, and sends its sum to all.
    padded = torch.zeros(math.ceil(size / world) * world, dtype=sent.dtype, device=sent.device)
    padded[:size] = sent
    received = torch.empty_like(padded)
    work = dist.all_to_all_single(received, padded, group=group, async_op=True)

    def gather() -> None:
        all_gather(padded, _in_order(received.view(world, -1), flat.dtype).to(padded.dtype), group)
        flat.copy_(padded[:size])

    return Sum(work, gather)


def _in_order(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum the ranks' parts in rank order and in full precision."""
    return functools.reduce(lambda total, part: total.add_(part), parts[1:], parts[0].to(dtype, copy=True))


def own_part_of_sum(sent: torch.Tensor, world: int, dtype: torch.dtype) -> torch.Tensor:
    """Return this rank's equal part of the sum over all ranks."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return _in_order(received.view(world, -1), dtype)


def all_gather(out: torch.Tensor, own: torch.Tensor, group: Any = None) -> None:
    """Gather every rank's tensor into `out`, in rank order."""
    world, size = dist.get_world_size(), own.numel()
    if out.device.type == "cpu" and world == 2:
        # Faster than gloo's all-gather, with the same bytes sent.
        mine, other = out.chunk(2) if dist.get_rank() == 0 else reversed(out.chunk(2))
        mine.copy_(own)
        sizes = _to_the_other(size)
        dist.all_to_all_single(other, mine, sizes, sizes, group=group)
        return
    # torch 2.13 renamed the function and warns about the old name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(out, own.contiguous(), group=group)


def _to_the_other(size: int) -> list[int]:
    """Return the split sizes between two ranks: nothing to itself, everything to the other."""
    return [0, size] if dist.get_rank() == 0 else [size, 0]
