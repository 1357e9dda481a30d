"""The gang's devices and its torch.distributed process group: chosen and made once per process."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from orca.backends.horovod_group import interface

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

PATIENCE = datetime.timedelta(minutes=30)


def device(context: RankContext) -> torch.device:
    """Where the models of all ranks live: each on a GPU of its own, or all on the CPU."""
    if "torch.device" not in context.memory:
        place = context.place
        told = context.allgather((place.local_rank, torch.cuda.device_count()))
        chosen = torch.device("cuda", place.local_rank) if have_gpus(told) else torch.device("cpu")
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        context.memory["torch.device"] = chosen
    found: torch.device = context.memory["torch.device"]
    return found


def have_gpus(told: Sequence[tuple[int, int]]) -> bool:
    """Whether there is a GPU for each rank, told as its number on its host and the GPUs there. NCCL refuses two
    ranks on one GPU, and ranks on a GPU cannot add up with ranks on the CPU."""
    return all(number < gpus for number, gpus in told)


def join(context: RankContext) -> None:
    """Be a member of the gang's process group."""
    if "torch.group" not in context.memory:
        context.memory["torch.group"] = _join(context)
        context.at_exit(dist.destroy_process_group)


def _join(context: RankContext) -> bool:
    place = context.place
    name = interface(place.address)
    if name is not None:
        # gloo would otherwise look the host name up, which need not resolve to an address the others reach.
        os.environ["GLOO_SOCKET_IFNAME"] = name
    store: dist.TCPStore | None = None
    if place.rank == 0:
        # Port 0: the system picks a free port and the store holds it, so nobody can take it in between.
        store = dist.TCPStore(place.address, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    address, port = context.allgather((place.address, store.port if store is not None else 0))[0]
    if store is None:
        store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=PATIENCE)
    dist.init_process_group(
        # Counts and flags stay on the CPU also where gradients are on GPUs.
        "cpu:gloo,cuda:nccl" if device(context).type == "cuda" else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.world,
        timeout=PATIENCE,
    )
    return True
