"""Finds what a failed job could leave behind: processes, listening ports, temporary files, actors."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Leftovers:
    """The processes, ports and files at one moment."""

    ranks: frozenset[int]
    stopped: frozenset[int]
    ports: frozenset[tuple[str, int]]
    files: frozenset[str]


def _family() -> list[psutil.Process]:
    """Return this process's descendants, and Ray's workers, which are not its children if Ray was already running."""
    processes = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words and words[0].startswith("ray::_RankActor"):
            processes[process.pid] = process
    return list(processes.values())


def look(tokens: tuple[str, ...] = ("zygote", "ray::_RankActor")) -> Leftovers:
    """Return the current processes, ports and files."""
    ranks, stopped = set(), set()
    for process in _family():
        try:
            text = " ".join(process.cmdline())
            state = process.status()
        except psutil.Error:
            continue
        if state == psutil.STATUS_ZOMBIE:
            continue
        if state == psutil.STATUS_STOPPED:
            stopped.add(process.pid)
        if any(token in text for token in tokens):
            ranks.add(process.pid)
    ports = listening([os.getpid()])
    folder = Path(tempfile.gettempdir())
    files = {path.name for path in folder.glob("orca-*")} | {path.name for path in folder.glob(".orca-*")}
    mine = {path.name for path in folder.glob("orca-shards-*")}
    files |= {f"{name}/{shard.name}" for name in mine for shard in (folder / name).glob(f"{os.getpid()}-*")}
    return Leftovers(frozenset(ranks), frozenset(stopped), frozenset(ports), frozenset(files))


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Return the addresses on which these processes listen."""
    addresses = set()
    for pid in pids:
        with suppress(psutil.Error):
            addresses |= {
                (entry.laddr.ip, entry.laddr.port)
                for entry in psutil.Process(pid).net_connections("tcp")
                if entry.status == psutil.CONN_LISTEN
            }
    return addresses


def still_there(pids: Iterable[int], ports: Iterable[tuple[str, int]], seconds: float = 10.0) -> list[Any]:
    """Return the processes that are still alive and the ports that still accept connections after a grace period."""
    end = time.monotonic() + seconds
    while (remaining := [*filter(_is_alive, pids), *filter(_accepts, ports)]) and time.monotonic() < end:
        time.sleep(0.1)
    return remaining


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _accepts(port: tuple[str, int]) -> bool:
    try:
        socket.create_connection(port, timeout=1).close()
    except OSError:
        return False
    return True


def settle(before: Leftovers, seconds: float = 10.0) -> Leftovers:
    """Wait until nothing is left beyond `before`, or the time is over; return the current state."""
    end = time.monotonic() + seconds
    while True:
        now = look()
        extra = (
            now.ranks - before.ranks,
            now.stopped - before.stopped,
            now.ports - before.ports,
            now.files - before.files,
        )
        if not any(extra) or time.monotonic() > end:
            return now
        time.sleep(0.1)
