"""The gang's devices and its torch.distributed process group, chosen and created once per process."""

from __future__ import annotations

import datetime
import logging
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from orca.backends.horovod_group import interface
from orca.core.limits import explained_limits

if TYPE_CHECKING:
    from orca.launch.base import Rank
    from orca.launch.rank import RankContext

PATIENCE = datetime.timedelta(minutes=30)
"""How long a rank waits for the others in a step."""
JOIN_PATIENCE = datetime.timedelta(minutes=2)
"""How long ranks, which are all ready then, take to connect at most."""


def device(context: RankContext) -> torch.device:
    """Return this rank's device: a GPU of its own if every rank has one, else the CPU."""
    return context.once("torch.device", lambda: _choose_device(context))


def _choose_device(context: RankContext) -> torch.device:
    number = device_number(context.place)
    ranks = context.allgather((number, torch.cuda.device_count()))
    if not have_gpus(ranks):
        if context.place.devices:
            logging.getLogger("orca").warning(
                "rank %d has the GPUs %s, but torch cannot use a GPU on every rank: all ranks use the CPU",
                context.place.rank,
                ", ".join(context.place.devices),
            )
        return torch.device("cpu")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def device_number(place: Rank) -> int:
    """Return the number of a rank's device among those that it sees: its own only, or all of its host."""
    return place.local_rank if place.devices is None else 0


def have_gpus(ranks: Sequence[tuple[int, int]]) -> bool:
    """Whether each rank has a GPU, given every rank's (number of its device, GPUs that it sees).

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
            timeout=JOIN_PATIENCE,
            master_listen_fd=os.dup(listening.fileno()),
        )


def _reach_store(address: str, port: int) -> dist.TCPStore:
    """Connect to the store of rank 0."""
    # The store's own client retries until its timeout, whatever the error is, and never says what it was.
    with explained_limits():
        socket.create_connection((address, port), JOIN_PATIENCE.total_seconds()).close()
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=JOIN_PATIENCE)


def _join(context: RankContext) -> None:
    place = context.place
    name = interface(place.address)
    if name is not None:
        # gloo would otherwise resolve the host name, which need not give an address that other hosts can reach.
        os.environ["GLOO_SOCKET_IFNAME"] = name
    store: dist.TCPStore | None = None
    if place.rank == 0:
        with explained_limits():
            store = _serve_store(place.address)
    address, port = context.allgather((place.address, store.port if store is not None else 0))[0]
    if store is None:
        store = _reach_store(address, port)
    dist.init_process_group(
        # Counts and flags stay on the CPU even when gradients are on GPUs.
        "cpu:gloo,cuda:nccl" if device(context).type == "cuda" else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.world,
        timeout=JOIN_PATIENCE,
    )
    dist.distributed_c10d._set_pg_timeout(PATIENCE)
    store.set_timeout(PATIENCE)
    context.at_exit(dist.destroy_process_group)
