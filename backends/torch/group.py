"""The gang's torch.distributed process group: made once per process, gloo or NCCL, on a port held from the start."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from orca.backends.horovod_group import interface

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

PATIENCE = datetime.timedelta(minutes=30)


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
        "nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.world,
        timeout=PATIENCE,
    )
    return True
