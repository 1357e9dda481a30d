"""Faults that the driver causes while a process waits at the moment of an ambush, and how to undo them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

Undo = Callable[[], None]
INTERRUPTS_APART = 0.01
_PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def nothing() -> None:
    """Undo what needs no undoing."""


def interrupt_twice(pid: int) -> Undo:
    """Send two SIGINTs to this process, as a terminal and a wrapper do."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(INTERRUPTS_APART)
    os.kill(os.getpid(), signal.SIGINT)
    return nothing


def zygotes() -> list[psutil.Process]:
    """The processes below this one that fork local ranks."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if "orca.launch.zygote" in " ".join(process.cmdline()):
                found.append(process)
    return found


def kill_zygotes(pid: int) -> Undo:
    """Kill the processes that fork local ranks; ranks have the same command line but another parent."""
    for process in zygotes():
        process.kill()
    return nothing


def stop_zygotes(pid: int) -> Undo:
    """Stop the processes that fork local ranks."""
    stopped = zygotes()
    for process in stopped:
        process.suspend()

    def undo() -> None:
        for process in stopped:
            with suppress(psutil.Error):
                process.resume()

    return undo


def take_descriptors(pid: int) -> Undo:
    """Let this process open no further file, socket or pipe."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    # What is below the highest number has to be taken one by one.
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))

    def undo() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)

    return undo


def fill_disk(pid: int) -> Undo:
    """Fill the file system of the temporary folder, which has to be a small one."""
    folder = Path(tempfile.gettempdir())
    room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if room > 1 << 30:
        raise AssertionError(f"the disk of {folder} has {room >> 20} MB of room: too much to fill")
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler.unlink


def take_ports(pid: int) -> Undo:
    """Take every port that this network namespace would choose from."""
    low, high = map(int, Path(_PORT_RANGE).read_text().split())
    if high - low > 1000:
        raise AssertionError(f"{high - low} ports to choose from: too many to take")
    held = []
    for port in range(low, high + 1):
        for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            taking = socket.socket(family)
            with suppress(OSError):
                if family == socket.AF_INET6:
                    taking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taking.bind((address, port))
                taking.listen()
            held.append(taking)

    def undo() -> None:
        for taken in held:
            taken.close()

    return undo


def _kill_above(names: Iterable[str]) -> Callable[[int], Undo]:
    def kill(pid: int) -> Undo:
        above = [process for process in psutil.Process(pid).parents() if process.name() in names]
        if not above:
            raise AssertionError(f"process {pid} has no {' or '.join(names)} above it")
        above[0].kill()
        return nothing

    return kill


def cut_link(pid: int) -> Undo:
    """Cut the link to the other host."""
    from orca.testing import host_clusters

    return host_clusters.cut_link()


INJECTORS: dict[str, Callable[[int], Undo]] = {
    "two interrupts": interrupt_twice,
    "zygote killed": kill_zygotes,
    "zygote stopped": stop_zygotes,
    "descriptors": take_descriptors,
    "full disk": fill_disk,
    "ports taken": take_ports,
    "raylet killed": _kill_above(("raylet",)),
    "executor killed": _kill_above(("java",)),
    "network cut": cut_link,
}
"""By the name of the fault: receives the process that waits at the moment, or an idle rank's, or 0; returns a function
that undoes it."""
