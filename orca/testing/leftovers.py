"""What a failed call could leave behind on this host: processes, listening ports, temporary files, actors."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil

TOKENS = ("zygote", "ray::_RankActor")
"""Parts of the command lines of ranks, and of the process that forks them."""


@dataclass(frozen=True)
class Leftovers:
    """What exists at one moment."""

    ranks: frozenset[int]
    stopped: frozenset[int]
    ports: frozenset[tuple[str, int]]
    files: frozenset[str]

    def minus(self, before: Leftovers) -> dict[str, list[Any]]:
        """Return what did not exist before, by kind; empty if there is nothing."""
        extra = {field.name: getattr(self, field.name) - getattr(before, field.name) for field in fields(self)}
        return {kind: sorted(items) for kind, items in extra.items() if items}

    def grown(self, before: Leftovers) -> dict[str, list[Any]]:
        """Return what is new among the kinds of which there are more than before."""
        return {
            kind: new
            for kind, new in self.minus(before).items()
            if len(getattr(self, kind)) > len(getattr(before, kind))
        }


def look(tokens: tuple[str, ...] = TOKENS) -> Leftovers:
    """Take stock of this process, its descendants and its temporary files."""
    ranks, stopped = set(), set()
    for process in psutil.Process().children(recursive=True):
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
    folder, others = Path(tempfile.gettempdir()), _locked_by_others()
    found = [path for pattern in ("orca-*", ".orca-*") for path in folder.glob(pattern)]
    files = {path.name for path in found if _inode(path / "lock") not in others}
    files |= {f"{path.parent.name}/{path.name}" for path in folder.glob(f"orca-shards-*/{os.getpid()}-*")}
    return Leftovers(frozenset(ranks), frozenset(stopped), frozenset(ports), frozenset(files))


def settle(before: Leftovers, seconds: float = 10.0) -> Leftovers:
    """Wait until nothing exists that did not exist before, but not for long; return what exists then."""
    end = time.monotonic() + seconds
    while (now := look()).minus(before) and time.monotonic() < end:
        time.sleep(0.1)
    return now


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Return the addresses at which these processes listen."""
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
    """Return which of these processes live and which of these ports answer, once there was time to end."""
    pids, ports = list(pids), list(ports)
    end = time.monotonic() + seconds
    while (remaining := [*filter(_lives, pids), *filter(_answers, ports)]) and time.monotonic() < end:
        time.sleep(0.1)
    return remaining


def _locked_by_others() -> set[int]:
    """The inodes of files that are locked by processes that are not of this family."""
    me = psutil.Process()
    family = {me.pid, *(process.pid for process in me.children(recursive=True))}
    entries = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {
        int(words[5].rpartition(":")[2]) for words in entries if words[1] == "FLOCK" and int(words[4]) not in family
    }


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _answers(port: tuple[str, int]) -> bool:
    try:
        socket.create_connection(port, timeout=1).close()
    except OSError:
        return False
    return True
