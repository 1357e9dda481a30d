"""Brings every shard of a source to every host of a gang: one copy per host, mapped by all its ranks.

Each rank starts with some packed shards of its own. It writes them to files, announces them to the other ranks,
fetches those that are stored on another host from the rank that has them, and maps all of them. The files are
unlinked as soon as every rank of the host has mapped them, so a rank that dies later leaves nothing behind.
"""

from __future__ import annotations

import itertools
import multiprocessing.connection as mpc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow

from orca.core.machine import host_id
from orca.core.scratch import scratch, write_pieces
from orca.launch.base import Handle, Meeting
from orca.launch.channel import Listening, knock
from orca.launch.rank import RankContext

OpenFile = Callable[[str], Handle]
"""Opens a file that holds one packed shard."""

_CHUNK = 8 << 20
_numbers = itertools.count()


def spool_prefix(token: str) -> str:
    """The prefix of the temporary folders of one call."""
    return f"orca-spool-{token}-"


@dataclass(frozen=True)
class _Parcel:
    """Where one packed shard is stored."""

    source: str
    index: int
    path: str
    host: str
    counter: Meeting


def spool(
    context: RankContext,
    records: Iterable[tuple[str, int, bytes | memoryview]],
    token: str,
    openers: Mapping[str, OpenFile],
) -> dict[str, list[Handle]]:
    """Exchange the ranks' packed shards; return, by source, all shards in order."""
    here = host_id()
    folder = scratch(spool_prefix(token), sweep="orca-spool-")
    try:
        own: list[tuple[str, int, str]] = []
        for name, index, blob in records:
            if name:
                path = _new_path(str(folder.path))
                write_pieces(path, iter([blob]))
                own.append((name, index, path))
        blob = b""
        pyarrow.default_memory_pool().release_unused()
        counter = _Counter(context.place.address, [path for _, _, path in own])
        try:
            mine = [_Parcel(name, index, path, here, counter.meeting) for name, index, path in own]
            parcels = [parcel for share in context.allgather(mine) for parcel in share]
            fetched = _fetch_share(context, here, parcels, str(folder.path))
            at_home = {
                (parcel.source, parcel.index): parcel.path
                for share in context.allgather(fetched + mine)
                for parcel in share
                if parcel.host == here
            }
        finally:
            counter.close()
        shards: dict[str, list[Handle]] = {}
        for name, open_file in openers.items():
            indices = sorted(index for source, index in at_home if source == name)
            shards[name] = [open_file(at_home[name, index]) for index in indices]
        context.allgather(None)
        return shards
    finally:
        folder.remove()


def _new_path(folder: str) -> str:
    return os.path.join(folder, f"{os.getpid()}-{next(_numbers)}.shard")


def _fetch_share(context: RankContext, here: str, parcels: list[_Parcel], folder: str) -> list[_Parcel]:
    """Fetch this rank's part of what its host lacks; the ranks of one host divide the work."""
    place = context.place
    missing = [parcel for parcel in parcels if parcel.host != here]
    fetched = []
    for parcel in missing[place.local_rank :: place.local_world]:
        path = _new_path(folder)
        peer, _ = knock(parcel.counter)
        with peer:
            peer.send(parcel.path)
            write_pieces(path, _until_empty(peer))
        fetched.append(_Parcel(parcel.source, parcel.index, path, here, parcel.counter))
    return fetched


def _until_empty(peer: Any) -> Iterator[bytes]:
    while chunk := peer.recv_bytes():
        yield chunk


class _Counter:
    """Hands out this rank's own files, and no others, to ranks that know the key."""

    def __init__(self, address: str, paths: list[str]) -> None:
        self._paths = set(paths)
        self._listening = Listening(address, self._serve)
        self.meeting = self._listening.meeting
        self.close = self._listening.close

    def _serve(self, peer: mpc.Connection) -> None:
        with peer:
            try:
                path = peer.recv()
                if path not in self._paths:
                    return
                with open(path, "rb") as file:
                    while chunk := file.read(_CHUNK):
                        peer.send_bytes(chunk)
                peer.send_bytes(b"")
            except (OSError, EOFError):
                return
