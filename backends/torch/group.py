"""The gang's devices and its torch.distributed process group, chosen and created once per process."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from orca.backends.horovod_group import interface

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

PATIENCE = datetime.timedelta(minutes=30)


def device(context: RankContext) -> torch.device:
    """Return this rank's device: a GPU of its own if every rank has one, else the CPU."""
    return context.once("torch.device", lambda: _choose_device(context))


def _choose_device(context: RankContext) -> torch.device:
    place = context.place
    ranks = context.allgather((place.local_rank, torch.cuda.device_count()))
    if not have_gpus(ranks):
        return torch.device("cpu")
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def have_gpus(ranks: Sequence[tuple[int, int]]) -> bool:
    """Whether each rank has a GPU, given every rank's (local rank, GPUs on its host).

    NCCL rejects two ranks on one GPU, and ranks on a GPU cannot reduce with ranks on the CPU.
    """
    return all(local_rank < gpus for local_rank, gpus in ranks)


def join(context: RankContext) -> None:
    """Join the gang's process group."""
    context.once("torch.group", lambda: _join(context))


def _serve_store(address: str) -> dist.TCPStore:
    """Start the store on this address only; by itself it would listen on all addresses of the host."""
    with socket.create_server((address, 0)) as listening:
        # The open socket is handed over, so that no other process can take its port in between.
        return dist.TCPStore(
            address,
            listening.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=PATIENCE,
            master_listen_fd=os.dup(listening.fileno()),
        )


def _join(context: RankContext) -> None:
    place = context.place
    name = interface(place.address)
    if name is not None:
        # gloo would otherwise resolve the host name, which need not give an address that other hosts can reach.
        os.environ["GLOO_SOCKET_IFNAME"] = name
    store: dist.TCPStore | None = None
    if place.rank == 0:
        store = _serve_store(place.address)
    address, port = context.allgather((place.address, store.port if store is not None else 0))[0]
    if store is None:
        store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=PATIENCE)
    dist.init_process_group(
        # Counts and flags stay on the CPU even when gradients are on GPUs.
        "cpu:gloo,cuda:nccl" if device(context).type == "cuda" else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.world,
        timeout=PATIENCE,
    )
    context.at_exit(dist.destroy_process_group)
