"""Brings Horovod up in a rank's process, for whichever framework asks, with the rendezvous kept by rank 0."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


_FUSION = "HOROVOD_FUSION_THRESHOLD"
_GIVEN = os.environ.get(_FUSION)
_APART, _TOGETHER = 0, 128 * 1024 * 1024
"""Left alone, Horovod joins tensors into messages as they happen to come, and the sum of three numbers depends on
where in a message they stand. From three ranks on each tensor is a message, so that results repeat; set the
variable yourself for speed instead. Horovod keeps the last value given in a process for all later gangs of it, and
ranks with different values break each other's messages: it is always given."""


def join(context: RankContext, hvd: Any) -> None:
    """Have Horovod running in this process as a member of the gang; `hvd` is its module for the framework."""
    key = f"horovod {hvd.__name__}"
    if key in context.memory:
        return
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    place = context.place
    server = None
    port = 0
    # A host is called by its address, which is what is reachable.
    everyone = context.allgather((place.address, place.local_rank))
    hosts = _hosts(everyone)
    counts = {address: sum(1 for other, _ in everyone if other == address) for address in hosts}
    if place.rank == 0:
        server = RendezvousServer(verbose=0)
        port = server.start()
        assignments = get_host_assignments(
            parse_hosts(",".join(f"{address}:{counts[address]}" for address in hosts)), place.world
        )
        server.init(assignments)
    address, port = context.allgather((place.address, port))[0]
    cross_rank, cross_size = across(everyone, place.rank)
    variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface(place.address) or "",
        "HOROVOD_HOSTNAME": place.address,
        "HOROVOD_RANK": place.rank,
        "HOROVOD_SIZE": place.world,
        "HOROVOD_LOCAL_RANK": place.local_rank,
        "HOROVOD_LOCAL_SIZE": place.local_world,
        "HOROVOD_CROSS_RANK": cross_rank,
        "HOROVOD_CROSS_SIZE": cross_size,
    }
    os.environ.update({name: str(value) for name, value in variables.items() if value != ""})
    os.environ[_FUSION] = _GIVEN or str(_APART if place.world > 2 else _TOGETHER)
    hvd.init()
    context.memory[key] = True
    if server is not None:
        context.at_exit(server.stop)
    context.at_exit(hvd.shutdown)


def across(everyone: Sequence[tuple[str, int]], rank: int) -> tuple[int, int]:
    """A rank's place among the hosts, and how many there are. Each rank has a host's address and a number there;
    Horovod counts the hosts that have a rank of the same number, and waits for as many as were counted."""
    _, number = everyone[rank]
    peers = [address for address in _hosts(everyone) if (address, number) in everyone]
    return peers.index(everyone[rank][0]), len(peers)


def _hosts(everyone: Sequence[tuple[str, int]]) -> list[str]:
    """The hosts, in the order of their first rank."""
    return list(dict.fromkeys(address for address, _ in everyone))


def interface(address: str) -> str | None:
    """The network interface with this address."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None
