"""Starts Horovod in a rank's process, for any framework, with the rendezvous server on rank 0."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psutil

from orca.errors import ResourceError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


_FUSION = "HOROVOD_FUSION_THRESHOLD"
_USER_FUSION = os.environ.get(_FUSION)
_UNFUSED, _FUSED = 0, 128 * 1024 * 1024
"""By default Horovod fuses tensors into messages in the order they arrive, and the sum of three numbers depends on
their position in a message. With three or more ranks each tensor is its own message, so that results are
reproducible; set the variable yourself to favor speed. Horovod reuses a process's last value for all its later
gangs, and ranks with different values corrupt each other's messages, so the variable is always set."""


def join(context: RankContext, hvd: Any) -> None:
    """Start Horovod in this process as a member of the gang; `hvd` is its module for the framework."""
    key = f"horovod {hvd.__name__}"
    if key in context.memory:
        return
    from orca.backends.horovod_rendezvous import Rendezvous

    place = context.place
    # Hosts are named by address, because the address is what other hosts can reach.
    everyone = context.allgather((place.address, place.local_rank))
    hosts = _hosts(everyone)
    counts = [(host, sum(1 for other, _ in everyone if other == host)) for host in hosts]
    _check_build(place.address, several=len(hosts) > 1)
    server = Rendezvous(place.address, counts) if place.rank == 0 else None
    address, port = context.allgather(None if server is None else server.server_address)[0]
    cross_rank, cross_size = cross_rank_and_size(everyone, place.rank)
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
    os.environ[_FUSION] = _USER_FUSION or str(_UNFUSED if place.world > 2 else _FUSED)
    hvd.init()
    context.memory[key] = True
    context.allgather(None)
    if server is not None:
        server.close()
    context.at_exit(hvd.shutdown)


def _check_build(address: str, several: bool) -> None:
    """Raise if Horovod would use an address of this host that other hosts cannot reach.

    Horovod 0.28.1 connects its process sets over the address of the host name, whatever HOROVOD_GLOO_IFACE says, and
    ends the process if there is none. Orca's own build does not (tools/build_horovod.py).
    """
    import horovod

    if not getattr(horovod, "process_sets_use_interface", False):
        check_host_name(socket.gethostname(), address, several)


def check_host_name(name: str, address: str, several: bool) -> None:
    """Raise unless a host name resolves: to this address if there are several hosts, to any if there is one."""
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
    except OSError:
        found = []
    if address in found or (found and not several):
        return
    raise ResourceError(
        f"This build of Horovod connects ranks over the address of the host name, and {name} resolves to "
        f"{', '.join(found) or 'nothing'} instead of {address}. Add the line '{address} {name}' to /etc/hosts on "
        f"{name}, or install the Horovod that tools/build_horovod.py builds."
    )


def cross_rank_and_size(everyone: Sequence[tuple[str, int]], rank: int) -> tuple[int, int]:
    """Return Horovod's cross rank and cross size of a rank, from the (address, local rank) of every rank.

    Horovod counts only the hosts that have a rank with the same local rank, and waits for exactly that many.
    """
    _, local_rank = everyone[rank]
    peers = [address for address in _hosts(everyone) if (address, local_rank) in everyone]
    return peers.index(everyone[rank][0]), len(peers)


def _hosts(everyone: Sequence[tuple[str, int]]) -> list[str]:
    """Return the hosts in the order of their first rank."""
    return list(dict.fromkeys(address for address, _ in everyone))


def interface(address: str) -> str | None:
    """Return the network interface with this address."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None
